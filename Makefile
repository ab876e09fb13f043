# Every target works as the first command in a fresh clone. Needed: Python 3.11+, make, and the
# package registries. Another interpreter: `make PYTHON=/path/to/python3.12 setup`.

VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PYTHON ?=
ARGS   ?=
BESIDE ?= 2
PYTEST  = $(BIN)/python -m pytest -n $(BESIDE)
HERE   := not gpu and not windows

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-long chaos check lint types types-windows imports generated format proto bench bench-builder bench-decide bench-fast-paths bench-faults bench-load bench-restart bench-slots bench-turns figures clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## a virtual environment in .venv with Corral in it

$(READY): pyproject.toml constraints.txt tools/setup
	@PYTHON="$(PYTHON)" VENV="$(VENV)" sh tools/setup
	@touch $(READY)

demo: $(READY) ## an embedded controller: a function, a map of 200, a script, a retry, 24 images
	@$(BIN)/python examples/demo.py

test: $(READY) ## every module, two tests at a time (ARGS='-k journal' passes arguments to pytest)
	@$(PYTEST) -m '$(HERE) and not long' $(ARGS)

test-long: $(READY) ## what takes its time: every write, every sync, half a minute of chaos, torch
	@$(PYTEST) -m '$(HERE) and long' $(ARGS)

chaos: $(READY) ## random faults over thousands of jobs, as root (ARGS='--seed 1 --seconds 60')
	@$(BIN)/python -m tests.chaos $(ARGS)

check: $(READY) ## lint, format, types, import directions, generated code
	@$(MAKE) --no-print-directory -k -j $(BESIDE) types types-windows lint imports generated

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY)
	@$(BIN)/mypy

types-windows: $(READY)
	@$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32 src

imports: $(READY)
	@$(BIN)/lint-imports

generated: $(READY)
	@$(BIN)/python tools/generated.py check

format: $(READY) ## what `check` can repair by itself
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

proto: $(READY) ## src/corral/contract/corral_pb2.py(i) from corral.proto
	@$(BIN)/python tools/generated.py write

bench: $(READY) ## Corral beside its peers, with bars (ARGS=--all for every peer, --quick to try it)
	@$(BIN)/python -m bench $(ARGS)

bench-load: $(READY) ## much output, many watchers and jobs, artifacts, 2 M records: memory and answers
	@$(BIN)/python -m bench.load $(ARGS)

bench-decide: $(READY) ## the scheduler: one decision over 50 and over 10,000 workers
	@$(BIN)/python -m bench.decide $(ARGS)

bench-fast-paths: $(READY) ## what each fast path is worth: the same figures without it, and without all
	@$(BIN)/python -m bench.fast_paths $(ARGS)

bench-builder: $(READY) ## plans of image batches: records a second, validated and with digests
	@$(BIN)/python -m bench.builder $(ARGS)

bench-faults: $(READY) ## lost workers and killed jobs: how soon work goes on elsewhere; 200 idle workers
	@$(BIN)/python -m bench.faults $(ARGS)

bench-slots: $(READY) ## image jobs: what each costs its slot beside the backend's own time
	@$(BIN)/python -m bench.slots $(ARGS)

bench-restart: $(READY) ## a restart with 100,000 queued jobs: to /health and the first placement
	@$(BIN)/python bench/restart.py $(ARGS)

bench-turns: $(READY) ## one of them on two checkouts in turns (ARGS='BEFORE decide --rounds 3')
	@$(BIN)/python -m bench.turns $(ARGS)

figures: $(READY) ## lines, modules, long functions, … (ARGS='BEFORE . --names' for two checkouts)
	@$(BIN)/python tools/figures.py $(ARGS)

clean: ## remove .venv and everything that tools left behind
	rm -rf $(VENV) .bench .cache .demo castles .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist build
	-find src tests examples bench tools -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null
