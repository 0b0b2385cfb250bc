# make run and make test need nothing but make: they install what is missing. "make help" lists the rest.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/built
# What a build depends on: with a change in any of these the extension modules are compiled anew.
SOURCES := pyproject.toml $(shell find sbus sbusd -name "*.pyx" -o -name "*.pxi" -o -name "*.pxd")
# They have no C of their own: whatever is there was generated, and may be of a module that has since been removed or renamed.
COMPILED = $(shell find sbus sbusd -name "*.c" -o -name "*.cpp" -o -name "*.so")
FUZZ_SECONDS ?= 600
MINUTES ?= 20
RUNS ?= 30
ROWS ?= 20000000
# As many workers as tests/conftest.py says for these processors; files start in the order of tests/conftest.py. PYTEST_OPTIONS=-n0 runs all tests in one process.
WORKERS := --numprocesses=logical --dist=loadfile --no-loadscope-reorder
# Tests start programs a thousand times, and each worker imports every test, which pytest rewrites: nothing is compiled twice.
unexport PYTHONDONTWRITEBYTECODE
# The status is written down because make has only one of its own for whatever fails; .ci/run passes it on.
RUN_TESTS = $(BIN)/python -m compileall -q sbus sbusd sbusctl sbus_*; run() { status=0; $(BIN)/pytest $(WORKERS) $(PYTEST_OPTIONS) "$$@" || status=$$?; \
	echo $$status >$(VENV)/pytest.status; exit $$status; }; run

.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help build run test test-sanitize lint check costs bench bench-peers bench-pipeline bench-index attacks faults defects soak soak-link chaos-pipeline fuzz deb house rpm storm bench-relay bench-link bench-blob bench-store bench-machine docs faces clean prepare-run prepare-test prepare-bench prepare-package

help: ## list what there is to make
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 22

build: $(STAMP) ## compile, and put everything into .venv

run: prepare-run $(STAMP) ## start a bus, show on it what it does between two users, and report on it
	@$(BIN)/python -m tools.demo

test: prepare-test $(STAMP) lint ## run every check and every test, on all processors; PYTEST_OPTIONS=-n0: on one
	@$(RUN_TESTS)

# In a fresh tree all workers would rewrite all tests at the same time. mypy needs a minute there, and one processor.
check test costs: BESIDE_MYPY = { [ -d tests/unit/__pycache__ ] || $(BIN)/pytest --collect-only -qq; } >/dev/null 2>&1 &

lint: $(STAMP) ## check style, format and types
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet || { $(BIN)/ruff format --check; exit 1; }
	@$(BESIDE_MYPY) $(BIN)/mypy --no-error-summary; status=$$?; wait; exit $$status

check: $(STAMP) lint ## run every check, and the tests that start no program: three minutes on two processors
	@$(RUN_TESTS) -m fast

house: $(STAMP) ## show the figures of the tree and their goals; fails if one has become worse
	@$(BIN)/python -m tools.house

costs: prepare-test $(STAMP) ## run every test, and show the 40 that take the most processor time, with their reasons
	@$(RUN_TESTS) --costs=40

bench: prepare-bench $(STAMP) ## measure the bus against what the kernel alone can do
	@$(BIN)/python -m compileall -q sbus sbusd sbusctl sbus_*
	@$(BIN)/python -m tests.bench.run

# The clients of the peers, which nothing else needs.
INSTALL_BENCH = $(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["bench"], sep="\n")' \
	| $(BIN)/python -m pip install -qq --disable-pip-version-check --requirement /dev/stdin

# As above, for Node. It is installed where the compiled loads are.
INSTALL_NODE_BENCH = mkdir -p tests/bench/build/node && cp tests/bench/peers/node/package.json tests/bench/build/node/ \
	&& npm install --prefix tests/bench/build/node --silent --no-audit --no-fund --no-package-lock

bench-peers: prepare-bench $(STAMP) ## measure the bus beside dbus-daemon, dbus-broker, Redis, NATS and Mosquitto, in C, Python and Node
	@$(INSTALL_BENCH)
	@$(INSTALL_NODE_BENCH)
	@$(BIN)/python -m tests.bench.peers.run

bench-pipeline: prepare-test $(STAMP) ## measure recorder, pipeline and report with ROWS (20000000) records, beside DuckDB and polars
	@$(BIN)/python -m tests.bench.pipeline.run --rows $(ROWS)

bench-index: $(STAMP) ## measure a run of the pipeline over the index of a year of 100 hosts
	@$(BIN)/python -m tests.bench.index_year

attacks: $(STAMP) ## attack the bus as one user and measure what another notices (as root)
	@$(BIN)/python -m tests.attacks.run

storm: prepare-test $(STAMP) ## 10,000 requests between two hosts whose relays and Redis are killed again and again
	@SBUS_STORM_REQUESTS=10000 $(BIN)/pytest -q tests/integration/relay/test_kills.py -k storm

bench-relay: prepare-test $(STAMP) ## measure calls between hosts against plain Redis and plain HTTP
	@$(BIN)/python -m tests.bench.hosts

bench-link: prepare-test $(STAMP) ## measure messages between linked hosts against NATS, with C clients and nats-py
	@$(INSTALL_BENCH)
	@$(BIN)/python -m tests.bench.linked_hosts

bench-blob: $(STAMP) ## measure a blob of 1 GiB to 8 subscribers against messages of 256 KiB
	@$(BIN)/python -m tests.bench.blobs

bench-store: prepare-test $(STAMP) ## measure stored messages and jobs beside Redis streams and NATS JetStream
	@$(INSTALL_BENCH)
	@$(BIN)/python -m tests.bench.store.run

faults: prepare-test $(STAMP) ## every system call of the data plane fails at every point, with every error
	@SBUS_FAULTS_ONE_IN=1 $(BIN)/pytest -q -n0 tests/faults/test_faults.py

defects: prepare-test $(STAMP) ## put sixty defects into a copy of the tree, one at a time: tests must find each; takes an hour (as root)
	@$(BIN)/python -m tests.defects.run

bench-machine: prepare-test $(STAMP) ## measure restarts, starts and connections of a bus under systemd, on a booted machine (as root)
	@$(BIN)/python -m tests.bench.machine

soak: $(STAMP) ## random clients of all kinds for MINUTES (20), and every message accounted for
	@$(BIN)/python -m tests.soak.run --minutes $(MINUTES)

soak-link: prepare-test $(STAMP) ## random faults between linked hosts for MINUTES (20), and every message accounted for
	@$(BIN)/python -m tests.faults.link.run --minutes $(MINUTES)

chaos-pipeline: prepare-test $(STAMP) ## RUNS (30) runs of the pipeline with kills and faults at random, compared with plain Python
	@$(BIN)/python -m tests.faults.pipeline.run --runs $(RUNS)

test-sanitize: prepare-test $(STAMP) ## run what touches compiled code under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(BIN)/python -m tests.sanitize.run $(PYTEST_OPTIONS)

fuzz: $(STAMP) ## fuzz for FUZZ_SECONDS (600)
	@$(BIN)/python -m tests.fuzz.run --seconds $(FUZZ_SECONDS)

deb: prepare-package ## build the Debian packages, into dist/ (as root; the first time downloads a root of Debian 13)
	@"$$(tools/prepare python)" -m tools.packages deb

rpm: prepare-package ## build the RPMs, into dist/ (as make deb does)
	@"$$(tools/prepare python)" -m tools.packages rpm

faces: $(STAMP) ## make the modules of the blocking client that are those of the asyncio client without await
	@$(BIN)/python -m tools.faces

docs: faces ## update what is generated: that, sbus-python(3) and the picture of the layers
	@$(BIN)/python -m tools.python_manual
	@$(BIN)/python -m tests.unit.test_layering

clean: ## remove .venv and all that was built
	rm -rf $(VENV) build dist sbusd.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis tests/bench/build
	find sbus* tests tools -name __pycache__ -prune -exec rm -rf {} +
	rm -f $(COMPILED)

prepare-run:
	@tools/prepare run

prepare-test:
	@tools/prepare test

prepare-bench:
	@tools/prepare bench

prepare-package:
	@tools/prepare package

# Without isolation the extension modules are compiled with the Cython and setuptools of .venv, so a second build needs no network.
# What was compiled goes first: neither setuptools nor Cython sees every change of a .pxd.
$(STAMP): $(SOURCES)
	@tools/prepare check
	@test -x $(BIN)/python || { echo 'build: a virtual environment in $(VENV)'; "$$(tools/prepare python)" -m venv $(VENV); }
	@echo 'build: dependencies and extension modules'
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --upgrade 'setuptools>=77' 'cython>=3.1'
	@rm -f $(COMPILED)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --no-build-isolation --editable '.[dev]'
	@touch $@
