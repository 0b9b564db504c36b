# The commands people use. All but `clean` and `lock` first make .venv when it is missing or out of date.

# The Python that makes .venv; name another one with: make setup PYTHON=/path/to/python
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
PYTEST_ARGS ?=
BIN := .venv/bin
# Tests start hundreds of processes. Where somebody's environment says not to keep compiled code, each would compile all.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo test lint bench bench-full simulate chaos soak format lock clean
.DEFAULT_GOAL := setup

setup: .venv/complete  ## everything, tests included, from nothing but Python 3.11 or later

.venv/complete: requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or later on PATH; name one: make setup PYTHON=/path/to/python" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { echo "making .venv with $(PYTHON)"; $(PYTHON) -m venv --clear .venv; }
	@echo "installing what requirements.lock lists"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: setup  ## the whole flow on this machine: a broker, four topics, a worker, traces; Ctrl-C stops it
	@$(BIN)/trace-projector demo

# Two cores are enough for five at once: about half of them wait for a broker (tests/conftest.py).
test: lint  ## everything that a change must pass
	$(BIN)/pytest -n 5 --dist worksteal $(PYTEST_ARGS)

lint: setup  ## format, lint, types, layers
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

build/peers/complete: tests/bench/peers.lock .venv/complete
	@echo "installing the frameworks that the bench measures beside"
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python build/peers
	@$(BIN)/uv pip install --quiet --python build/peers/bin/python --require-hashes -r tests/bench/peers.lock
	@touch $@

bench: setup build/peers/complete  ## how fast it is, beside the floor and in itself; writes bench.json (docs/performance.md)
	$(BIN)/python -m tests.bench

bench-full: setup build/peers/complete  ## the same with all sizes, a million messages among them; takes an hour
	$(BIN)/python -m tests.bench --full

simulate: setup  ## worlds through storms of faults, one per seed (SEEDS=n), or one with all that happens (SEED=x)
	@$(BIN)/python -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),1000))

chaos: setup  ## three brokers and two workers, killed, frozen and restarted while messages come in (CYCLES=n, SEED=x)
	@$(BIN)/python -m tests.chaos --cycles $(or $(CYCLES),5) $(if $(SEED),--seed $(SEED))

soak: setup  ## one worker in constant use (MINUTES=n): what it has resident must not grow
	@$(BIN)/python -m tests.chaos soak --minutes $(or $(MINUTES),10)

format: setup  ## rewrite the code as `lint` wants it
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-emit-find-links --custom-compile-command "make lock"

lock:  ## pin what pyproject.toml asks for; UPGRADE=1 takes the newest versions
	$(LOCK) pyproject.toml --all-extras --group dev $(if $(UPGRADE),--upgrade) --output-file requirements.lock
	$(LOCK) pyproject.toml --extra clickhouse --extra delta --extra otlp --extra parquet --extra postgresql --constraint requirements.lock --output-file deploy/runtime.lock
	cp requirements.lock tests/bench/peers.lock
	$(LOCK) pyproject.toml --group peers --output-file tests/bench/peers.lock
	$(LOCK) --group build --constraint requirements.lock --output-file deploy/build.lock

clean:  ## remove .venv and every cache
	rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
