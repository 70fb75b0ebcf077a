# Every target sets up what it needs: the virtual environment in .venv (again only when
# pyproject.toml or requirements.lock changes), and Java 17 or newer for what starts Spark or Kafka.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON := $(CURDIR)/.venv/bin/python
INSTALLED := .venv/.installed
# The builder of the documentation. It does not notice changed docstrings, so what it has cached is
# removed first; its own --clean would empty .cache of everything.
DOCS := .venv-docs/bin/python -m zensical
DOCS_INSTALLED := .venv-docs/.installed

# Spark's workers must be the interpreter that has the package, not the python3 of the PATH.
export PYSPARK_PYTHON := $(PYTHON)
export PYSPARK_DRIVER_PYTHON := $(PYTHON)
# All Spark here is local; a machine that cannot resolve its own name would not start it otherwise.
export SPARK_LOCAL_IP ?= 127.0.0.1
# Output shows up as it is made, also where it goes into a pipe.
export PYTHONUNBUFFERED := 1
# The tests start hundreds of interpreters, which need not compile the same modules again.
unexport PYTHONDONTWRITEBYTECODE

# Processes share the tests: so many those that need nothing but Python, and two the others, file
# by file, since each has brokers and a Spark of its own and most of its time waits for them.
FAST := not slow and not kafka and not spark
WORKERS ?= auto
SLOW_WORKERS ?= 2
PYTEST_FAST = $(PYTHON) -m pytest -m "$(FAST)" -n $(WORKERS) --maxprocesses 8 --dist worksteal
PYTEST_SLOW = $(PYTHON) -m pytest -m "not ($(FAST))" -n $(SLOW_WORKERS) --dist loadfile

WITH_JAVA := JAVA_HOME="$$(scripts/find_java.sh)" && export JAVA_HOME &&

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: $(INSTALLED) ## Create .venv and install the package with all it needs
	@scripts/find_java.sh > /dev/null

$(INSTALLED): pyproject.toml requirements.lock scripts/make_venv.sh scripts/install_locked.sh
	@scripts/make_venv.sh .venv
	@touch $@

.PHONY: check
check: $(INSTALLED) ## Formatting, lint, types, spelling, layering
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	$(PYTHON) -m codespell_lib
	$(PYTHON) -m pytest -q tests/test_layering.py tests/test_docstrings.py

.PHONY: docs
docs: $(INSTALLED) $(DOCS_INSTALLED) ## Build the documentation in site/; fails if a link is broken
	@rm -rf site .cache/mkdocstrings.json .cache/[0-9]*
	@$(DOCS) build --strict

.PHONY: docs-serve
docs-serve: $(INSTALLED) $(DOCS_INSTALLED) ## Show the documentation at http://localhost:8000, as it is edited
	@$(DOCS) serve

# Its dependencies are its own: the builder of the site must not change what the tests run with.
$(DOCS_INSTALLED): $(INSTALLED) scripts/docs.lock
	@[ -x .venv-docs/bin/python ] || $(PYTHON) -m venv .venv-docs
	@scripts/install_locked.sh .venv-docs scripts/docs.lock
	@touch $@

.PHONY: fix
fix: $(INSTALLED) ## Mend what the formatter, the linter and the spelling checker can mend
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .
	$(PYTHON) -m codespell_lib --write-changes

.PHONY: test
test: $(INSTALLED) ## Everything: unit, property, Spark, real Kafka (half an hour on 2 cores)
	@scripts/find_maven.sh
	@scripts/find_kerberos.sh .venv
	@trap 'exit 130' INT; first=passed; second=passed; \
	echo "Tests, 1 of 2: what needs neither Java nor Kafka"; \
	$(PYTEST_FAST) $(PYTEST_ARGS) || first="failed (exit code $$?)"; \
	echo "Tests, 2 of 2: Spark, real Kafka, and all that is slow"; \
	{ $(WITH_JAVA) $(PYTEST_SLOW) $(PYTEST_ARGS); } || second="failed (exit code $$?)"; \
	echo "Tests, 1 of 2: $$first"; \
	echo "Tests, 2 of 2: $$second"; \
	[ "$$first$$second" = passedpassed ]

.PHONY: test-fast
test-fast: $(INSTALLED) ## What needs neither Java nor Kafka (4 to 5 minutes on 2 cores)
	@$(PYTEST_FAST) --hypothesis-profile=quick $(PYTEST_ARGS)

.PHONY: coverage
coverage: $(INSTALLED) ## Branch coverage of the fast tests
	@$(PYTHON) -m pytest -m "$(FAST)" \
	  --cov --cov-report=term-missing:skip-covered $(PYTEST_ARGS)

.PHONY: lock
lock: $(INSTALLED) ## Lock the newest versions that pyproject.toml allows, with their hashes
	@scripts/lock.sh .venv

.PHONY: audit
audit: $(INSTALLED) ## Known vulnerabilities in what is installed; fails where it cannot ask
	@scripts/audit.sh .venv

.PHONY: soak
soak: $(INSTALLED) ## Write for 15 minutes in random faults and kills (SOAK_ARGS="--minutes 15 --seed 1")
	@scripts/find_maven.sh
	@$(WITH_JAVA) $(PYTHON) -m tests.soak $(SOAK_ARGS)

.PHONY: fuzz
fuzz: $(INSTALLED) ## Random bytes, and bytes that coverage leads to, for who reads from the network (FUZZ_ARGS="--seconds 60")
	@$(PYTHON) -m tests.fuzz $(FUZZ_ARGS)

.PHONY: mutants
mutants: $(INSTALLED) ## Change the code in 400 random places: do tests notice? (MUTANTS_ARGS="--help")
	@$(PYTHON) -m tests.mutants $(MUTANTS_ARGS)

.PHONY: bench
bench: $(INSTALLED) ## Measure against other clients and Spark's JVM sink (BENCH_ARGS="--help")
	@scripts/find_maven.sh
	@$(WITH_JAVA) $(PYTHON) -m benchmarks.bench $(BENCH_ARGS)

.PHONY: demo
demo: $(INSTALLED) ## Write a million rows to the embedded broker and read some back
	@$(WITH_JAVA) $(PYTHON) examples/demo.py

.PHONY: clean
clean: ## Remove what the other targets made, .venv included
	rm -rf .venv .venv-docs site build dist artifacts *.egg-info .coverage .coverage.* .hypothesis \
	  .mypy_cache .pytest_cache .ruff_cache spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
