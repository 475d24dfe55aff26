# The commands for developers. `make` alone lists them.
#
# Needs only Python 3.11 or newer and make: pip installs uv if it is missing, and all packages go into
# .venv with the versions and hashes of requirements.lock.

PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SYSTEM := $(VENV)/.system
PREPARED := $(VENV)/.prepared
# Spark runs for about a minute in most tests: Java's second compiler would cost more time than it saves.
SHORT_LIVED := -XX:TieredStopAtLevel=1
FAULT_PARTS := 14
CAPTURE_FAULTS := $(addprefix tests/capture/,sqlite/test_contract.py mariadb/test_contract.py test_captures_on_kafka.py) \
  $(addprefix tests/capture/postgres/test_,contract.py trigger_contract.py versions.py faults.py tables.py)
FAULTS = HEADWATER_FAULTS=full HEADWATER_FAULTS_PART=$$part HEADWATER_FAULTS_RUNS=$(CURDIR)/docs/fault_runs.jsonl \
  $(BIN)/pytest -q -o faulthandler_timeout=0
UV := $(shell command -v uv 2>/dev/null || echo $(VENV)-uv/bin/uv)

# Some shells set it; then every process that the tests start would compile all modules it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo test check-hour faults lint format console docs build lock ci clean

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALLED) $(SYSTEM)  ## set up .venv (the other targets do it when needed)

demo: $(INSTALLED)  ## run the demo shop: events, a captured PostgreSQL, six pipelines on Spark, a web page (FOR=60s ends it and checks the numbers)
	@$(BIN)/headwater demo $(if $(FOR),--for $(FOR))

test: $(INSTALLED) $(SYSTEM) $(PREPARED)  ## run all tests, doctests included (WORKERS=0: in one process)
	@$(BIN)/pytest -q -n $(WORKERS) --dist worksteal -m "not spark and not services" $(ARGS)
	@$(BIN)/pytest -q -n $(WORKERS) --dist worksteal -m "services and not spark" $(ARGS)
	@JDK_JAVA_OPTIONS=$(SHORT_LIVED) $(BIN)/pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder \
	  -o faulthandler_timeout=600 -m spark $(ARGS)

# Exit code 5 of pytest: the room has no such tests.
test-%: $(INSTALLED) $(SYSTEM) $(PREPARED)  ## run the tests of one room: test-log, test-engine, … (ARGS="-k late")
	@$(BIN)/pytest -q -n $(WORKERS) --dist worksteal -m "not spark" $(wildcard tests/$* src/headwater/$* src/headwater/$*.py) $(ARGS) \
	  || [ $$? -eq 5 ]
	@JDK_JAVA_OPTIONS=$(SHORT_LIVED) $(BIN)/pytest -q -m spark $(wildcard tests/$* src/headwater/$*) $(ARGS) || [ $$? -eq 5 ]

check-hour: build  ## play the first hour of a new user with the installed wheel; writes docs/first-hour.md
	@$(BIN)/python -m tests.first_hour.check_hour dist/headwater-*.whl --uv $(UV) $(ARGS)

# Each part takes at most an hour on two idle cores (tests/fault_suites.csv). Exit code 5: the part has no such tests.
faults: $(INSTALLED) $(SYSTEM) $(PREPARED)  ## run the long fault suites of log, queues, engine and capture, or one part (PART=2/14)
	@failed=0; for part in $(or $(PART),$(shell seq -f %g/$(FAULT_PARTS) $(FAULT_PARTS))); do \
	  $(FAULTS) -n $(WORKERS) --dist worksteal -m "not spark and not services" tests/faults tests/queues $(CAPTURE_FAULTS) $(ARGS) \
	    || [ $$? -eq 5 ] || failed=1; \
	  $(FAULTS) -m "services and not spark" tests/faults $(CAPTURE_FAULTS) $(ARGS) || [ $$? -eq 5 ] || failed=1; \
	  $(FAULTS) -m spark tests/faults tests/engine tests/scale $(ARGS) || [ $$? -eq 5 ] || failed=1; \
	done; $(BIN)/python -m tests.fault_parts || failed=1; exit $$failed

bench-%: $(INSTALLED)  ## measure: bench-log, bench-spine (views), bench-scale (Kafka, PostgreSQL, workers), bench-state, bench-queues, bench-capture, bench-growth, bench-soak (memory), bench-start
	@$(BIN)/python -m benchmarks.bench_$* $(ARGS)

lint: $(INSTALLED)  ## check style, layers and types: ruff, import-linter, mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/mypy

format: $(INSTALLED)  ## format the code with ruff
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

console: console/node_modules/.package-lock.json  ## build the web page of the node (needs Node.js 20.19 or newer)
	@cd console && npm run --silent check && npm run --silent build

console/node_modules/.package-lock.json: console/package-lock.json
	@cd console && npm ci --silent && touch node_modules/.package-lock.json

docs: $(INSTALLED)  ## write the generated parts of the pages anew, and build the documentation into site/
	@$(BIN)/python -m docs._generator.pages
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "docs: site/index.html"

build: $(INSTALLED)  ## build the source archive and the wheel into dist/
	@$(UV) build --quiet --no-build-isolation --python $(BIN)/python --out-dir dist

lock: | $(UV)  ## resolve requirements.lock (ARGS=--upgrade takes the newest versions)
	@$(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --custom-compile-command "make lock" --group dev $(ARGS) pyproject.toml -o requirements.lock

ci:  ## run what CI runs, from set-up to the installed wheel
	@CI=true .ci/run

clean:  # remove everything that make has created
	@rm -rf $(VENV) $(VENV)-uv dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache console/node_modules
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

define check_python
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
  echo "make: Headwater needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; \
  echo "make: install one and name it, for instance: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
endef

# Packages are built and installed from the lock alone: no build isolation, so nothing unpinned is fetched.
$(INSTALLED): pyproject.toml requirements.lock | $(UV)
	$(check_python)
	@echo "setting up $(VENV), about a minute the first time ..."
	@test -x $(BIN)/python || $(UV) venv --quiet --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')" $(VENV)
	@$(UV) pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes requirements.lock
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

# Programs that fault tests call (strace and others). The script asks nothing and never fails.
$(SYSTEM): tests/system_packages.sh | $(INSTALLED)
	@tests/system_packages.sh
	@touch $@

# Tests start Spark a hundred times: the archive takes a minute once and saves five.
$(PREPARED): requirements.lock | $(INSTALLED)
	@$(BIN)/headwater prepare && touch $@ || echo "make: no class archive; Spark starts more slowly" >&2

# Used when no uv is on the path: a small environment of its own.
$(VENV)-uv/bin/uv:
	$(check_python)
	@$(PYTHON) -m venv $(VENV)-uv || { \
	  echo "make: $(PYTHON) cannot make a virtual environment (Debian, Ubuntu: apt-get install python3-venv)," >&2; \
	  echo "make: or install uv in another way." >&2; exit 1; }
	@$(VENV)-uv/bin/pip install --quiet "uv>=0.9"
