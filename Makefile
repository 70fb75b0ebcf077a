# Every target sets up its requirements: the virtual environment in .venv (again only when
# pyproject.toml or requirements.lock changes), and Java 17 or newer if it starts Spark or Kafka.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON := $(CURDIR)/.venv/bin/python
INSTALLED := .venv/.installed
DEMO_INSTALLED := .venv/.installed-demo
# The builder of the documentation. It does not detect changed docstrings, so its cache is removed
# first; its own --clean would remove everything in .cache.
DOCS := .venv-docs/bin/python -m zensical
DOCS_INSTALLED := .venv-docs/.installed
DIST_INSTALLED := .venv-dist/.installed
NOTEBOOKS := .venv-notebooks/bin/python
NOTEBOOKS_INSTALLED := .venv-notebooks/.installed

# Spark's workers must be the interpreter that has the package, not the python3 of the PATH.
export PYSPARK_PYTHON := $(PYTHON)
export PYSPARK_DRIVER_PYTHON := $(PYTHON)
# All Spark here is local. Without this, a machine that cannot resolve its own name cannot start it.
export SPARK_LOCAL_IP ?= 127.0.0.1
# Output is not buffered, even in a pipe.
export PYTHONUNBUFFERED := 1
# The tests start hundreds of interpreters, which should share the compiled modules.
unexport PYTHONDONTWRITEBYTECODE

# Tests run in parallel, in more processes than there are cores (at most 8), since some always wait:
# those that need only Python one by one, the others by groups that share brokers or Spark.
FAST := not slow and not kafka and not spark and not soak
WORKERS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))
SLOW_WORKERS ?= $(shell echo $$(($(WORKERS) + 1)))
PYTEST_FAST = $(PYTHON) -m pytest -m "$(FAST)" -n $(WORKERS) --maxprocesses 8 --dist worksteal
PYTEST_SLOW = $(PYTHON) -m pytest -m "not ($(FAST)) and not soak" -n $(SLOW_WORKERS) --maxprocesses 8 \
  --dist loadscope --no-loadscope-reorder --durations=25

# What has event loops, sockets and files is tested in Python's development mode, in which asyncio
# watches over the loops, and what is not closed is an error. It would also check the
# memory beside that of compiled code, for a sixth of the time: `make soak` does that for records.
DEVELOPMENT := PYTHONDEVMODE=1 PYTHONASYNCIODEBUG=1 PYTHONMALLOC=pymalloc
DEVELOPED := $(addprefix tests/unit/,admin consumer devbroker display exactly_once network producer \
  registry spark support)

SLOW_FOLDERS := tests/kafka tests/model tests/platforms tests/spark

# The tests' Spark drivers live for seconds, and start faster without Java's slow compiler and with
# an archive of their classes, and their Python workers with compiled modules (quick_spark.py).
# Java's own warnings about an archive would be printed as output.
QUICK_SPARK := .venv/quick-spark
SPARK_CLASSES := $(QUICK_SPARK)/classes.jsa
QUICK_JAVA := -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable
test test-kafka notebooks: export SPARK_HOME := $(CURDIR)/$(QUICK_SPARK)
test test-kafka notebooks: export SPARK_LAUNCHER_OPTS ?= $(QUICK_JAVA)
test test-kafka notebooks: export SPARK_SUBMIT_OPTS ?= $(QUICK_JAVA) \
  -XX:SharedArchiveFile=$(CURDIR)/$(SPARK_CLASSES)

WITH_JAVA := JAVA_HOME="$$(scripts/find_java.sh)" && export JAVA_HOME &&

.PHONY: help
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

.PHONY: setup
setup: $(INSTALLED) ## Create .venv and install the package with its development dependencies
	@scripts/find_java.sh > /dev/null

$(INSTALLED): pyproject.toml requirements.lock scripts/make_venv.sh scripts/install_locked.sh
	@scripts/make_venv.sh .venv requirements.lock dev
	@touch $@

# Only what the demo needs, unless the development environment is there.
$(DEMO_INSTALLED): pyproject.toml scripts/demo.lock scripts/make_venv.sh scripts/install_locked.sh
	@scripts/make_venv.sh .venv scripts/demo.lock demo
	@touch $@

# Quietly: Java lists each class that it leaves out.
$(SPARK_CLASSES): $(INSTALLED) $(wildcard tests/support/java/quick_*.py)
	@$(WITH_JAVA) $(PYTHON) -m tests.support.java.quick_spark $(QUICK_SPARK) \
	  > .venv/quick-spark.log 2>&1 || { cat .venv/quick-spark.log >&2; exit 1; }

.PHONY: check
check: $(INSTALLED) ## Check formatting, lint, types, spelling and layering
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m ruff check .
	$(PYTHON) -m mypy
	$(PYTHON) -m codespell_lib
	$(PYTHON) -m pytest -q tests/test_layering.py tests/test_docstrings.py

.PHONY: notebooks
notebooks: $(NOTEBOOKS_INSTALLED) $(SPARK_CLASSES) ## Run the notebooks, keep their outputs and render them in build/notebooks
	@# Otherwise matplotlib may say in a notebook that it looks for fonts.
	@$(NOTEBOOKS) -c 'import matplotlib.font_manager'
	@$(WITH_JAVA) $(NOTEBOOKS) scripts/run_notebooks.py $(NOTEBOOKS_ARGS)

# The notebooks see the packages of .venv, and have only their own tools here.
$(NOTEBOOKS_INSTALLED): $(INSTALLED) scripts/notebooks.lock
	@[ -x $(NOTEBOOKS) ] || $(PYTHON) -m venv .venv-notebooks
	@$(NOTEBOOKS) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > .venv-notebooks/.place
	@echo "import site; site.addsitedir('$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
	  > "$$(cat .venv-notebooks/.place)/development.pth"
	@scripts/install_locked.sh .venv-notebooks scripts/notebooks.lock
	@touch $@

.PHONY: docs
docs: $(INSTALLED) $(DOCS_INSTALLED) ## Build the documentation in site/; fail if a link is broken
	@$(PYTHON) scripts/site_pages.py
	@rm -rf site .cache/mkdocstrings.json .cache/[0-9]*
	@# The builder ignores a page that is missing from the navigation, or in it alone.
	@$(PYTHON) -m pytest -q tests/unit/test_docs.py -k navigation
	@$(DOCS) build --strict

.PHONY: docs-serve
docs-serve: $(INSTALLED) $(DOCS_INSTALLED) ## Serve the documentation at http://localhost:8000, as it is now
	@$(PYTHON) scripts/site_pages.py
	@$(DOCS) serve

# Its dependencies are installed separately, so that they do not change those of the tests.
$(DOCS_INSTALLED): $(INSTALLED) scripts/docs.lock
	@[ -x .venv-docs/bin/python ] || $(PYTHON) -m venv .venv-docs
	@scripts/install_locked.sh .venv-docs scripts/docs.lock
	@touch $@

.PHONY: dist
dist: $(DIST_INSTALLED) ## Build the wheel, the sdist and the bill of materials in dist/, twice and equal, and check that they install
	@scripts/dist.sh .venv-dist

.PHONY: matrix
matrix: $(DIST_INSTALLED) ## Test the wheel with all Pythons and PySparks (MATRIX_ARGS="--python 3.12 --pyspark 4.1")
	@scripts/dist.sh .venv-dist
	@$(WITH_JAVA) .venv-dist/bin/python scripts/matrix.py $(MATRIX_ARGS)

$(DIST_INSTALLED): $(INSTALLED) scripts/dist.lock
	@[ -x .venv-dist/bin/python ] || $(PYTHON) -m venv .venv-dist
	@scripts/install_locked.sh .venv-dist scripts/dist.lock
	@touch $@

.PHONY: fix
fix: $(INSTALLED) ## Fix what the formatter, the linter and the spelling checker can fix
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .
	$(PYTHON) -m codespell_lib --write-changes

.PHONY: test
test: $(SPARK_CLASSES) test-requirements ## Run all tests but those of make soak: unit, property, Spark, real Kafka (25 minutes on 2 cores)
	@trap 'exit 130' INT; first=passed; second=passed; third=passed; \
	echo "Tests, 1 of 3: fast tests with event loops, sockets or files, in development mode"; \
	$(DEVELOPMENT) $(PYTEST_FAST) $(DEVELOPED) $(PYTEST_ARGS) || first="failed (exit code $$?)"; \
	echo "Tests, 2 of 3: the other fast tests"; \
	$(PYTEST_FAST) $(addprefix --ignore=,$(DEVELOPED) $(SLOW_FOLDERS)) $(PYTEST_ARGS) \
	  || second="failed (exit code $$?)"; \
	echo "Tests, 3 of 3: Spark, real Kafka and slow tests"; \
	{ $(WITH_JAVA) $(PYTEST_SLOW) $$($(PYTHON) -m tests.support.slow_half) $(PYTEST_ARGS); } \
	  || third="failed (exit code $$?)"; \
	echo "Tests, 1 of 3: $$first"; \
	echo "Tests, 2 of 3: $$second"; \
	echo "Tests, 3 of 3: $$third"; \
	[ "$$first$$second$$third" = passedpassedpassed ]

.PHONY: test-kafka
test-kafka: export ONLY_KAFKA := $(KAFKA)
test-kafka: $(SPARK_CLASSES) test-requirements ## Run the tests on real Kafka on one version (KAFKA=4.3.1), instead of the newest and the oldest
	@$(WITH_JAVA) $(PYTEST_SLOW) tests/kafka $(PYTEST_ARGS)

# After an audit in the same run, since it installs packages.
.PHONY: test-requirements
test-requirements: $(INSTALLED) | $(filter audit,$(MAKECMDGOALS))
	@scripts/find_maven.sh
	@scripts/find_kerberos.sh .venv
	@$(WITH_JAVA) $(PYTHON) -m tests.support.kafka.prepared_release

.PHONY: test-fast
test-fast: $(INSTALLED) ## Run the fast tests, which need neither Java nor Kafka (3 minutes on 2 cores)
	@$(PYTEST_FAST) --hypothesis-profile=quick $(PYTEST_ARGS)

.PHONY: coverage
coverage: $(INSTALLED) ## Measure the branch coverage of the fast tests
	@$(PYTHON) -m pytest -m "$(FAST)" \
	  --cov --cov-report=term-missing:skip-covered $(PYTEST_ARGS)

.PHONY: lock
lock: $(INSTALLED) ## Lock the newest versions that pyproject.toml allows, with their hashes
	@scripts/lock.sh .venv

.PHONY: audit
audit: $(INSTALLED) ## Check the installed packages for known vulnerabilities; fail if that is impossible
	@scripts/audit.sh .venv

.PHONY: soak
soak: $(INSTALLED) ## Search for faults for 55 minutes or more: write for 15, copy with Spark, read in groups for 10, during random faults and kills; then the tests that make test leaves out (SOAK_ARGS="--minutes 15 --seed 1")
	@scripts/find_maven.sh
	@$(WITH_JAVA) $(PYTHON) -m tests.soak $(SOAK_ARGS)

.PHONY: fuzz
fuzz: $(INSTALLED) ## Fuzz all code that reads from the network, at random and guided by coverage (FUZZ_ARGS="--seconds 60")
	@$(PYTHON) -m tests.fuzz $(FUZZ_ARGS)

.PHONY: mutants
mutants: $(INSTALLED) ## Mutate the code in 400 random places and report what no test detects (MUTANTS_ARGS="--help")
	@$(PYTHON) -m tests.mutants $(MUTANTS_ARGS)

.PHONY: flakes
flakes: $(INSTALLED) ## Run the fast tests while their processes pause at random moments (FLAKES_ARGS="--seed 1 tests/unit/consumer")
	@$(PYTHON) -m tests.flakes $(FLAKES_ARGS)

.PHONY: bench
bench: $(INSTALLED) ## Compare the sink with other clients and Spark's JVM sink (BENCH_ARGS="--help")
	@scripts/find_maven.sh
	@$(WITH_JAVA) $(PYTHON) -m benchmarks.bench $(BENCH_ARGS)

.PHONY: demo
demo: $(if $(wildcard $(INSTALLED)),$(INSTALLED),$(DEMO_INSTALLED)) ## Write a million rows, read them back, and copy a topic with a stream that is killed
	@$(WITH_JAVA) $(PYTHON) examples/demo.py

.PHONY: clean
clean: ## Remove everything that the other targets create, including .venv
	rm -rf .venv .venv-dist .venv-docs .venv-notebooks site build dist artifacts *.egg-info .coverage \
	  .coverage.* .hypothesis .cache/matrix .mypy_cache .pytest_cache .ruff_cache spark-warehouse \
	  metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
