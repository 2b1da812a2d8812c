"""Other benchmarks' formats: FlashInfer-Bench definitions, workloads, solutions and traces, read and written."""
