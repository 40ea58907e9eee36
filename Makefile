# Everything runs in .venv, which is made on the first call and brought up to date when the pins change.

VENV := .venv
PY := $(VENV)/bin/python
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# For targets that only read the code: settings load, but no database is used.
NO_DATABASE := DATABASE_URL=postgresql://localhost/none

.PHONY: help run test test-all pytest soak torture-cluster matrix peers-suites screenshots lint generate wheel lock stop clean

help:
	@echo "make run       start everything for a first look (options: make run UP='--http 127.0.0.1:8080')"
	@echo "make test      lint, then the tests; those that lack Java, Chromium or Node.js are counted and skipped"
	@echo "               (options: make test PYTEST='-k words')"
	@echo "make pytest    the tests without lint, with the same options"
	@echo "make test-all  lint, then every test, the long ones too; a missing tool is a failure"
	@echo "make soak      hours of torture, simulation, ETL under load, the broker against a model of queues, and the"
	@echo "               longest forms of tests"
	@echo "make torture-cluster"
	@echo "               torture on a Patroni cluster of its own; needs etcd"
	@echo "               (options: make torture-cluster CLUSTER='--mode quorum --rounds 4')"
	@echo "make matrix    the tests that depend on a version, on each supported release of Python, Django, Celery and"
	@echo "               PostgreSQL (options: make matrix CELLS='lowest postgres-14')"
	@echo "make peers-suites"
	@echo "               Celery's and kombu's own tests on Fivewire and, where it is installed, on RabbitMQ"
	@echo "make lint      ruff, mypy, import contracts, migrations, generated files, Dockerfile, compose.yaml"
	@echo "make generate  write the generated files anew: blocking clients, diagrams, the settings page"
	@echo "make screenshots"
	@echo "               draw the pictures of the documentation anew, with Chromium"
	@echo "make wheel     build dist/fivewire-….whl, for pip install"
	@echo "make lock      write requirements.txt and requirements-dev.txt anew, with hashes: the newest"
	@echo "               versions that pyproject.toml allows"
	@echo "make stop      stop the embedded PostgreSQL"
	@echo "make clean     delete .venv, caches and .data WITH EVERY MESSAGE IN IT"

run: $(VENV)/.run
	@$(PY) manage.py up $(UP)

# Tests wait as much as they compute: more processes than processors, each of which reads all tests. A file's tests
# stay together. They start hundreds of programs, each of which would compile the code anew without its bytecode.
PYTEST_PARALLEL := PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n 4 --dist loadfile --no-loadscope-reorder

# The tests start beside lint, which uses one processor only for half a minute.
test: $(VENV)/.dev
	@$(MAKE) --no-print-directory -j 2 lint pytest

test-all: $(VENV)/.dev
	@$(MAKE) --no-print-directory -j 2 lint pytest EVERYTHING=--everything

pytest: $(VENV)/.dev
	$(PYTEST_PARALLEL) $(EVERYTHING) $(PYTEST)

soak: $(VENV)/.dev
	$(PY) -m tests.rigs.hydra_simulator --seeds 20000 --jobs 2
	$(PY) manage.py torture --kills 200 --database-kills 20 --seconds 3600
	$(PY) manage.py torture --listeners 2 --kills 200 --database-kills 10 --seconds 3600
	$(PY) -m tests.rigs.etl_soak
	MODEL_STEPS=10000 $(PY) -m pytest tests/queues/model
	HOSTILE_EXAMPLES=1000 $(PY) -m pytest --timeout=0 tests/hostile
	$(PY) -m pytest --soak

torture-cluster: $(VENV)/.dev
	$(PY) -m tests.rigs.cluster $(CLUSTER)

# What depends on a version, on each release that is supported; each cell has an environment of its own.
matrix: $(VENV)/.dev
	$(PY) -m tests.matrix $(CELLS)

# Celery's, kombu's and django-tasks' own tests, from the sources of the installed versions.
peers-suites: $(VENV)/.dev
	$(PY) -m tests.suites $(SUITES)

screenshots: $(VENV)/.dev
	$(PY) -m pytest --everything tests/browser/test_night.py --screenshots docs/images

lint: $(VENV)/.dev
	$(PY) -m ruff check .
	$(VENV)/bin/hadolint Dockerfile
	$(VENV)/bin/check-jsonschema --quiet --builtin-schema vendor.compose-spec compose.yaml
	$(NO_DATABASE) $(PY) -m mypy
	$(VENV)/bin/lint-imports
	$(PY) .ci/async_to_sync.py --check
	$(PY) .ci/state_diagrams.py --check
	$(NO_DATABASE) $(PY) -W ignore manage.py makemigrations --check --dry-run
	$(NO_DATABASE) $(PY) manage.py settingsdoc --check

# Files of the tree that are made from others: the blocking clients, the pages' state diagrams, the settings page.
generate: $(VENV)/.dev
	$(PY) .ci/async_to_sync.py
	$(PY) .ci/state_diagrams.py
	$(NO_DATABASE) $(PY) manage.py settingsdoc

$(PY):
	@for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	    if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	        $$python -m venv $(VENV) && exit 0; \
	        rm -rf $(VENV); \
	        echo "A virtual environment could not be made with $$python (on Debian: apt-get install python3-venv)." >&2; \
	        exit 1; \
	    fi; \
	done; \
	echo "Python 3.11 or later is needed and was not found as python3 or python3.11 to python3.14." >&2; \
	exit 1

# Both locks name setuptools, which builds this project: nothing without a hash is installed for it.
PIP_LOCKED := $(PY) -m pip install --quiet --no-deps --require-hashes --requirement
PIP_PROJECT := $(PY) -m pip install --quiet --no-deps --no-build-isolation --editable .

$(VENV)/.run: pyproject.toml requirements.txt | $(PY)
	$(PIP_LOCKED) requirements.txt
	$(PIP_PROJECT)
	@touch $@

$(VENV)/.dev: pyproject.toml requirements-dev.txt | $(PY)
	$(PIP_LOCKED) requirements-dev.txt
	$(PIP_PROJECT)
	@touch $@ $(VENV)/.run

# The locks hold for every Python and machine that pyproject.toml allows.
UV_COMPILE = $(VENV)/lock/bin/uv --no-config pip compile --quiet --universal --python-version 3.11 --generate-hashes \
    --no-annotate --no-emit-index-url --custom-compile-command "make lock" pyproject.toml -

wheel: $(VENV)/.dev
	$(PY) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	rm -rf build

lock: | $(PY)
	rm -rf $(VENV)/lock
	$(PY) -m venv $(VENV)/lock
	$(VENV)/lock/bin/python -m pip install --quiet uv
	echo "setuptools>=77,<86" | $(UV_COMPILE) --upgrade --extra dev --output-file requirements-dev.txt
	echo "setuptools>=77,<86" | $(UV_COMPILE) --extra all --constraint requirements-dev.txt --output-file requirements.txt
	rm -rf $(VENV)/lock

stop: $(VENV)/.run
	$(PY) -m brokersite.embedded stop

clean:
	@if [ -x $(PY) ] && [ -e .data/postgres ]; then $(PY) -m brokersite.embedded remove .data; fi
	rm -rf .data $(VENV) build *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
