# Two commands do everything on a fresh machine:
#   make demo    set up, then run the main job on the embedded default (CPU, no downloads of models, minutes)
#   make test    set up, then pass every check and test
VENV ?= .venv
BIN := $(VENV)/bin
# One thread a process: small tensors are slower with more.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-fast lint setup setup-dev docs docs-site presets clean

demo: setup
	$(BIN)/sanarl train --config tiny-image-nft.toml

test: setup-dev lint
	$(BIN)/python -m pytest -n 2

test-fast: setup-dev
	$(BIN)/python -m pytest -m "not slow"

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: setup-dev
	$(BIN)/python -m sanarl.config.docs
	$(BIN)/python -m sanarl.config.migrating
	$(BIN)/python -m sanarl.report.docs
	$(BIN)/python benchmarks/tables.py

docs-site: setup-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

presets: setup-dev
	$(BIN)/python -m sanarl.config.make_presets

setup:
	@scripts/setup.sh $(VENV)

setup-dev:
	@scripts/setup.sh $(VENV) dev,rewards

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
