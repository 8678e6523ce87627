# `make help` lists the targets. The environment is .venv, made by the first target that needs it.
SHELL := /bin/bash
.DELETE_ON_ERROR:
# Targets share .venv and the workflow's lock; each is parallel in itself.
.NOTPARALLEL:

PYTHON ?= python3
CORES ?= all
# Processes of the tests: three for two processors, as many tests wait for others' processes.
WORKERS ?= 3

ifeq ($(OS),Windows_NT)
$(error Millrace needs Linux: on Windows run it in WSL (wsl --install))
endif

VENV := .venv
BIN := $(VENV)/bin
# What is typed by hand needs no activation; steps run the Python that runs Snakemake. As modules, since the scripts in
# .venv/bin hold the path they were installed at, and a folder may be moved.
SNAKEMAKE := $(BIN)/python -m snakemake
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install --constraint constraints.txt

BENCH := PYTHONPATH=scripts $(BIN)/python -m tests.bench
BENCH_DIR ?= /tmp/millrace-bench

.PHONY: help run test test-long fuzz docs reference check dry-runs gpu bench clean

help: ## List the targets (the default)
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 16

run: $(VENV)/.runtime ## Fetch the demo corpus and build everything that config.yaml promises
	$(SNAKEMAKE) --cores $(CORES) speech_fetch_corpus
	$(SNAKEMAKE) --cores $(CORES)

# Alike on all machines, also where there is a GPU: the tests that need one are those of `make gpu`.
test test-long fuzz: export CUDA_VISIBLE_DEVICES =

# One pytest run, so that its last line counts all tests; their order is in tests/conftest.py.
test: check dry-runs ## Check style and workflow, then run the tests
	$(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder -m "not long" tests

test-long: $(VENV)/.test ## Run the tests that take long: Slurm, chromium, scale, whole workflows once more
	$(BIN)/python -m pytest -n $(WORKERS) --no-loadscope-reorder -m long tests

FUZZ ?= 100000
fuzz: $(VENV)/.test ## Read FUZZ damaged files of each kind; run the tests with generated examples on many new ones, and the slow tests
	PYTHONPATH=scripts:. $(BIN)/python -m tests.fuzz --count $(FUZZ)
	MILLRACE_FUZZ=1 $(BIN)/python -m pytest -n $(WORKERS) $$(grep -rl --include='test_*.py' -e '@given' -e mark.slow tests)

docs: $(VENV)/.test ## Write docs/configuration.md, docs/audit and the list of modules from schemas, catalogue and docstrings
	PYTHONPATH=scripts $(BIN)/python -m tests.workflow.configuration
	PYTHONPATH=scripts $(BIN)/python -m tests.audit.entry_pages
	PYTHONPATH=scripts $(BIN)/python -m tests.workflow.module_list

reference: $(VENV)/.test ## Build the API reference into site/; a warning is an error
	$(BIN)/python -m mkdocs build --strict

check: $(VENV)/.test ## Check style and types of Python, the style of Snakefiles, and lint the workflow
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/python -m snakefmt --check Snakefile rules
	$(SNAKEMAKE) --lint

# All targets of a profile in one run: one that cannot be planned ends it by name.
dry-runs: $(VENV)/.test ## Dry-run every target under every profile
	@set -euo pipefail; \
	targets=$$($(SNAKEMAKE) --list-target-rules 2>/dev/null | sed -nE 's/^([a-z0-9_]+)( .*)?$$/\1/p'); \
	test -n "$$targets"; \
	for profile in profiles/*/; do \
	  said=$$($(SNAKEMAKE) --profile "$${profile%/}" --dry-run -- $$targets 2>&1) || { echo "$$said"; exit 1; }; \
	  echo "snakemake --profile $${profile%/} -n: $$(echo "$$targets" | wc -l) targets"; \
	done

# The tests that need a device, then calibration, verification and the throughput runs of Qwen3-ASR 0.6B, random weights.
gpu: $(VENV)/.test ## Test and measure on this machine's CUDA device and write docs/measured-gpu.md
	PYTHONPATH=scripts:. $(BIN)/python -m tests.bench.gpu --folder $(BENCH_DIR)/gpu --page docs/measured-gpu.md

# Sizes at which each part ends in a few minutes on two cores. Scratch: about 5 GB in BENCH_DIR.
bench: $(VENV)/.bench ## Measure against peers: readers, tar index, cutting, buckets, planner
	mkdir -p $(BENCH_DIR)
	$(BENCH).readers --make-tars 12 --members 6000 --runs 5 --scratch $(BENCH_DIR)
	$(BENCH).bench_tar_index --folder $(BENCH_DIR) --rounds 5
	$(BENCH).bench_cut --repeats 5
	$(BENCH).bench_buckets --rows 2000000 --rounds 5 --work-dir $(BENCH_DIR)/buckets
	$(BENCH).bench_planner --rows 5000000

# resources/ stays: fetched corpora, and the assignment file that keeps test recordings out of train for ever.
clean: ## Remove results, logs, benchmarks and caches; resources/ (corpora, assignment file) and .venv stay
	rm -rf results logs benchmarks site report.html .snakemake .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# Stamps: what is installed is installed once, until the requirements change.
$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Millrace needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." \
	    "Say which to use: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "No virtual environment could be made; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@touch $@

# The package itself as it lies here, so that `python -m millrace` works in any folder.
$(VENV)/.runtime: requirements.txt requirements-demo.txt constraints.txt pyproject.toml | $(VENV)/.python
	$(PIP) -r requirements-demo.txt
	$(PIP) --no-deps --editable .
	@touch $@

$(VENV)/.test: requirements-test.txt $(VENV)/.runtime | $(VENV)/.python
	$(PIP) -r requirements-test.txt
	@touch $@

$(VENV)/.bench: requirements-bench.txt $(VENV)/.runtime | $(VENV)/.python
	$(PIP) -r requirements-bench.txt
	@touch $@
