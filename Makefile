# Every target sets up what it needs; `make help` lists them.
.DEFAULT_GOAL := help
.PHONY: help install demo notebook test test-slow test-long check fix docs bench clean

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.installed

help:  ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Done once; done again when the dependencies change. The pinned pip is 45 seconds faster than the one that comes with
# Python 3.11, and compileall uses all cores. A file of torch for Python 3.12 and later may not compile.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; choose one with: make PYTHON=python3.11 ..." >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt pip
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-compile -e '.[dev]'
	$(BIN)/python -m compileall -qq -j 0 -x py312 .venv/lib
	@touch $@

install: $(READY)  ## Make .venv and install Likeness with pinned dependencies (about 2 GB)

demo: $(READY)  ## Draw a gallery, embed and index it, search it, and stay up as a server
	$(BIN)/likeness demo

notebook: $(READY)  ## Open the notebooks in JupyterLab, with a small demo collection
	$(BIN)/python -m jobs.demo.collection demo-data
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) notebooks/01_explore_neighbours.ipynb

# Where it is set, each of some hundred processes compiles Likeness and its tests again.
unexport PYTHONDONTWRITEBYTECODE

# A file's tests stay in one process, see tests/conftest.py. Another in place of one that ended, as by a test's time,
# would wait for ever for the rest of its file.
# Three processes on two cores: tests wait a fifth of their time for other processes, servers and the disk, slow ones
# longer.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadgroup --no-loadscope-reorder --max-worker-restart 0

test: $(READY)  ## Run the tests, except the slow ones (5 minutes on 2 cores)
	$(PYTEST) -m "not slow and not ray and not browser and not long"

test-slow: $(READY)  ## Run the slow tests: on Ray, of faults and crashes, and in a browser
	$(PYTEST) -m "(slow or ray or browser) and not long"

test-long: $(READY)  ## Run soaks, losses of nodes, and tests at length (two hours on 2 cores)
	$(PYTEST) -n 2 -m "long or hypothesis" --hypothesis-profile long

check: $(READY)  ## Lint, formatting, types, and which package may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fix: $(READY)  ## Format, and repair what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)  ## Render docs/settings.md from the code
	$(BIN)/python -m tests.support.settings_page docs/settings.md

# docs/benchmarks.md says why scale and peers are not among them.
BENCHMARKS := demo_model embed precision cluster index index.result_set index.short_memory index.words reembed serve serve.shards hostile startup annotate ocr watch duplicates catalog runs driver curation curation.searches

bench: $(READY)  ## Run benchmarks in their quick form, and list those that miss a bar
	@missed=; for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name --quick || missed="$$missed $$name"; done; \
	  test -z "$$missed" || { echo "missed a bar or failed:$$missed" >&2; exit 1; }

clean:  ## Remove the environment, caches, builds and the demo's data
	rm -rf .venv build dist demo-data .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
