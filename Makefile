# Everything runs in .venv, which is made on the first call and brought up to date when the pins change.

VENV := .venv
PY := $(VENV)/bin/python
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# What only looks at the code needs settings that load, but no database.
NO_DATABASE := DATABASE_URL=postgresql://localhost/none

.PHONY: help run test test-all soak peers-suites lint lock stop clean

help:
	@echo "make run       start everything for a first look (options: make run UP='--http 127.0.0.1:8080')"
	@echo "make test      lint, then the tests; those that lack Java, Chromium or Node.js are counted and skipped"
	@echo "               (options: make test PYTEST='-k words')"
	@echo "make test-all  lint, then every test, the long ones too; a missing tool is a failure"
	@echo "make soak      hours of torture, simulation and ETL under load"
	@echo "make peers-suites"
	@echo "               Celery's and kombu's own tests on Fivewire and, where it is installed, on RabbitMQ"
	@echo "make lint      ruff, mypy, import contracts, migrations and the settings page"
	@echo "make lock      write constraints.txt anew with the newest versions that pyproject.toml allows"
	@echo "make stop      stop the embedded PostgreSQL"
	@echo "make clean     delete .venv, caches and .data WITH EVERY MESSAGE IN IT"

run: $(VENV)/.run
	@$(PY) manage.py up $(UP)

# Tests wait more than they compute: more processes than processors. A file's tests stay together.
PARALLEL := -n 4 --dist loadfile --no-loadscope-reorder

test: lint
	$(PY) -m pytest $(PARALLEL) $(PYTEST)

test-all: lint
	$(PY) -m pytest $(PARALLEL) --everything $(PYTEST)

soak: $(VENV)/.dev
	$(PY) -m hydra.simulator --seeds 20000 --jobs 2
	$(PY) manage.py torture --kills 200 --database-kills 20
	$(PY) manage.py torture --listeners 2 --kills 30 --database-kills 4
	$(PY) manage.py etl soak

# Celery's, kombu's and django-tasks' own tests, from the sources of the installed versions.
peers-suites: $(VENV)/.dev
	$(PY) -m tests.suites $(SUITES)

lint: $(VENV)/.dev
	$(PY) -m ruff check .
	$(NO_DATABASE) $(PY) -m mypy
	$(VENV)/bin/lint-imports
	$(NO_DATABASE) $(PY) -W ignore manage.py makemigrations --check --dry-run
	$(NO_DATABASE) $(PY) manage.py settingsdoc --check

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

$(VENV)/.run: pyproject.toml constraints.txt | $(PY)
	$(PY) -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(PY)
	$(PY) -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@ $(VENV)/.run

lock: | $(PY)
	rm -rf $(VENV)/lock
	$(PY) -m venv $(VENV)/lock
	$(VENV)/lock/bin/python -m pip install --quiet --editable '.[dev]'
	@{ echo "# Written by make lock: the versions that are tested together."; \
	  $(VENV)/lock/bin/python -m pip freeze --exclude-editable; } > constraints.txt
	rm -rf $(VENV)/lock

stop: $(VENV)/.run
	$(PY) -m brokersite.embedded stop

clean:
	@if [ -x $(PY) ] && [ -e .data/postgres ]; then $(PY) -m brokersite.embedded remove .data; fi
	rm -rf .data $(VENV) build *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
