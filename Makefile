# Weft's chores; `make help` lists them. Everything installs into .venv and nowhere else.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
RUNNABLE := $(VENV)/.runnable
PYTEST := $(BIN)/python -m pytest -n auto
EXAMPLES ?= 100
BACKEND ?= reference
SHARD ?= 1/1
FIRST ?= 0
TARGET ?= cpu

# Tests start hundreds of processes, and where this is set each compiles all of Weft's modules anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup run test example-c runtime-wheel test-full test-random test-plans test-torch test-mpi test-browser test-array-api test-tinygrad test-opinfo test-onnx sanitize check check-fast lint types imports format docs bench clean

help: ## list what make can do
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## create .venv and install Weft and its tools; again when pyproject.toml changes

# What a target needs is an extra of pyproject.toml: the tools for work on Weft take far more room
# than Weft itself.
define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Weft needs Python 3.11 or newer: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(1)]'
endef

$(INSTALLED): pyproject.toml
	$(call install,dev)
	@touch $@ $(RUNNABLE)

$(RUNNABLE): pyproject.toml
	$(call install,plots)
	@touch $@

run: $(RUNNABLE) ## train a small GPT on the documentation: loss curve, sample, profile
	@$(BIN)/python -m examples.text_gpt

test: setup ## the fast tests
	@$(PYTEST) -m 'not slow'

example-c: setup ## build a model as a bundle, and run it from C and C++ with warnings as errors
	@$(BIN)/python -m examples.bundle --out build/example-c

runtime-wheel: setup ## write the wheel weft-runtime, which runs bundles without the compiler, into dist/
	@$(BIN)/python -m weft.bundles.wheel --out dist

test-full: setup ## all tests and random programs, also the long ones: six hours on one core
	@$(PYTEST)
	@$(MAKE) --no-print-directory test-random
	@$(MAKE) --no-print-directory test-plans

test-random: setup ## 100,000 random programs on the cpu backend: SHARD=I/N; resumes where it stopped
	@$(BIN)/python -m tests.random --shard $(SHARD) --resume build/random-$(subst /,-of-,$(SHARD)).jsonl

test-plans: setup ## 20,000 random programs with stages, in random plans, compiled and interpreted row by row: FIRST=SEED TARGET=cpu, or cuda for the GPU
	@$(BIN)/python -m tests.random.stages --first $(FIRST) --target $(TARGET)

test-torch: setup ## comparisons with PyTorch, which is installed into .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	@$(PYTEST) tests/torch

test-mpi: setup ## two real ranks through MPI, which is installed into .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[mpi]"
	@$(BIN)/python -m pytest -n 0 tests/mpi

test-browser: setup ## the explorer's page in Chromium, if it is installed with its driver: PICTURES=DIR
	@WEFT_BROWSER=1 PICTURES="$(PICTURES)" $(BIN)/python -m pytest -n 0 tests/browser

test-array-api: setup ## the test suite of the array API: SUITE=DIR, a copy of it with its submodule; EXAMPLES=100 BACKEND=reference
	@test -d "$(SUITE)/array_api_tests" -a -d "$(SUITE)/array-api/src" \
		|| { echo "SUITE=DIR must be a copy of data-apis/array-api-tests with its submodule" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r "$(SUITE)/requirements.txt"
	@mkdir -p build
	@cd "$(SUITE)" && ARRAY_API_TESTS_MODULE=weft WEFT_BACKEND=$(BACKEND) $(CURDIR)/$(PYTEST) -q --disable-deadline \
		--max-examples $(EXAMPLES) --junitxml=$(CURDIR)/build/array-api.xml array_api_tests || true
	@$(BIN)/python tests/scores/array_api.py build/array-api.xml

test-tinygrad: setup ## tinygrad's test_ops.py on Weft: SUITE=DIR, a copy of its sources; BACKEND=reference
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	@WEFT_BACKEND=$(BACKEND) $(BIN)/python -m tests.scores.tinygrad_suite "$(SUITE)"

test-opinfo: setup ## torch's OpInfo: how many of its ops Weft has, and how many agree with torch; BACKEND=reference
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	@WEFT_BACKEND=$(BACKEND) $(BIN)/python -m tests.scores.opinfo_suite

test-onnx: setup ## the test suite of ONNX: how many of its 2,033 cases are right; BACKEND=reference
	@$(BIN)/python -m tests.scores.onnx_suite --backend $(BACKEND)

sanitize: setup ## compute-sanitizer on a program for every GPU template; needs an SM90 GPU and CUDA's tools
	@$(BIN)/python -m tests.device.sanitize

check: lint types imports test ## everything that must pass before a commit

# What most changes break first, of every room; what compiles or starts processes is for `make test`.
FAST := $(addprefix tests/,arch compat reject text) \
	$(addprefix tests/unit/,coarse indexbook memory plan poly poly_view ptir/passes tiny)

check-fast: lint types imports ## for quick feedback: style, types, imports, and 2,000 tests that compile little
	@$(PYTEST) -m 'not slow' $(FAST)

lint: setup ## style, by ruff
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: setup ## types, by mypy
	@$(BIN)/mypy

imports: setup ## import rules, by import-linter
	@$(BIN)/lint-imports

format: setup ## format the code and fix what ruff can fix
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: setup ## write the generated pages again: api, ops, functional, gradients, interchange, the walk through the stages, the curve of README
	@$(BIN)/python -m docs.generate_api
	@$(BIN)/python docs/generate_ops.py
	@$(BIN)/python docs/generate_interchange.py
	@$(BIN)/python docs/generate_functional.py
	@$(BIN)/python -m docs.generate_gradients
	@$(BIN)/python docs/generate_walkthrough.py
	@$(BIN)/python -m docs.draw_curve

bench: setup ## compare the reference backend with plain NumPy on a GPT-2 forward pass
	@$(BIN)/python benchmarks/reference_gpt2.py

clean: ## remove caches and build outputs, but not .venv
	@rm -rf build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find src tests examples benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} +
