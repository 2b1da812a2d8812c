# A fresh machine needs Python >= 3.11 and a C++ compiler; everything else is set up here.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
MODEL ?= smollm2-135m

.PHONY: setup tune test test-slow lint bench-peers clean

setup: $(STAMP)

# The CPU build of torch first: a later resolver then finds it satisfied and never takes a CUDA build.
# FlashInfer-Bench without its dependencies, which bring CUDA, and kernels without sigstore: the schema and the loaders
# that tests use need none of them.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "kforge needs Python >= 3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade pip
	$(BIN)/python -m pip install -q -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install -q -c constraints.txt --no-deps flashinfer-bench kernels
	touch $@

tune: setup
	$(BIN)/kforge tune $(MODEL) $(TUNE_FLAGS)

lint: setup
	$(BIN)/ruff check kforge tests bench
	$(BIN)/mypy

test: setup lint
	$(BIN)/python -m pytest -m "not slow and not gpu" $(TEST_FLAGS)

test-slow: setup
	$(BIN)/python -m pytest -m "slow and not gpu" $(TEST_FLAGS)

bench-peers: setup
	$(BIN)/python bench/peers.py $(BENCH_FLAGS)

clean:
	rm -rf $(VENV) build *.egg-info
