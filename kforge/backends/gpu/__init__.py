"""What backends for GPUs share: the artifact's container, what binaries say of themselves, the cost model."""
