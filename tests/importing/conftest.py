"""One thread for BLAS and torch: small products on a busy machine are ten times slower with more."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
