# make env | env-torch | demo | test | test-other | test-track | test-torch | test-mpich | test-arm | test-wheel | test-browser | test-long | test-all | coverage | simulate | test-cluster | test-cluster-all | chaos | format | check | docs | bench | clean
# VENV=dir chooses another folder for the environment; PYTHON=3.12, or a path, chooses its Python.

VENV ?= .venv
BIN := $(abspath $(VENV))/bin
export VENV
export PATH := $(BIN):$(PATH)
# By default Open MPI refuses to start as root.
export OMPI_ALLOW_RUN_AS_ROOT ?= 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM ?= 1
export TF_CPP_MIN_LOG_LEVEL ?= 2
# Tests start hundreds of interpreters, which need not compile the same modules again.
unexport PYTHONDONTWRITEBYTECODE
# Number of parallel tests: launches wait more than they compute.
WORKERS ?= 3

.PHONY: env env-torch demo test test-other test-track test-torch test-mpich test-arm test-wheel test-browser test-long test-all coverage simulate test-cluster test-cluster-all chaos format check docs bench clean

env:
	@tools/env.sh

# The environment with PyTorch.
env-torch:
	@tools/env.sh torch

# The main job on scikit-learn's digits: one preprocessor, and four trainers for ten networks. MPI need
# not look for a fabric on one machine.
demo: env
	OMPI_MCA_btl=^ofi OMPI_MCA_mtl=^ofi $(BIN)/mpirun -n 5 --oversubscribe --bind-to none $(BIN)/python -m fleet.run examples/digits.yaml

# Five minutes on two cores: one test of each kind, with fewer examples.
test: env
	FLEET_TEST_EXAMPLES=$${FLEET_TEST_EXAMPLES:-0.05} $(BIN)/python -m pytest -n $(WORKERS) -m "not long" $(PYTEST_ARGS)

# A short selection, for an environment with another Python: make test-other VENV=.venv-3.13 PYTHON=3.13
test-other: env
	FLEET_TEST_EXAMPLES=$${FLEET_TEST_EXAMPLES:-0.05} $(BIN)/python -m pytest -n $(WORKERS) -m "not long" \
		tests/fleet/spec tests/fleet/engines tests/fleet/prediction tests/preprocess tests/test_doctests.py \
		tests/mpi/test_keras.py $(PYTEST_ARGS)

# Exports to trackers and searches of other tools, with their libraries in a separate environment
# without TensorFlow. (W&B's sweeps asks for an old NumPy, but works with a new one.)
test-track: export PATH := $(CURDIR)/.venv-track/bin:$(PATH)
test-track: export KERAS_BACKEND := jax
test-track: env
	$(BIN)/python -m venv .venv-track
	.venv-track/bin/python -m pip install -qq -e '.[track,pandas,parquet]' optuna-dashboard pytest pytest-timeout pytest-xdist hypothesis \
		keras keras-tuner jax six jsonref jsonschema scikit-learn
	.venv-track/bin/python -m pip install -qq --no-deps sweeps
	.venv-track/bin/python -m pytest -o addopts=-q -rs tests/fleet/export tests/fleet/sweeps $(PYTEST_ARGS)

# The tests of PyTorch in a separate environment, with one thread each, since threads of parallel tests
# wait for each other. (Horovod is left out: it is for TensorFlow and takes minutes to build.)
test-torch: export PATH := $(CURDIR)/.venv-torch/bin:$(PATH)
test-torch: export OMP_NUM_THREADS ?= 1
test-torch:
	HOROVOD= VENV=.venv-torch tools/env.sh torch
	.venv-torch/bin/python -m pytest -n $(WORKERS) -rs -m torch $(PYTEST_ARGS)

# The tests of ranks with MPICH in a separate environment, without TensorFlow; those of what only Open
# MPI does when a rank dies are left out.
test-mpich: export PATH := $(CURDIR)/.venv-mpich/bin:$(PATH)
test-mpich: export FLEET_TEST_EXAMPLES ?= 0.05
test-mpich: env
	$(BIN)/python -m venv .venv-mpich
	.venv-mpich/bin/python -m pip install -qq -e '.[fast,demo]' mpich mpi4py greenlet hypothesis pytest pytest-timeout pytest-xdist
	.venv-mpich/bin/python -m pytest -n $(WORKERS) -rs -m "not (open_mpi or tensorflow or torch or long or cluster)" tests/mpi $(PYTEST_ARGS)

# Whether each pinned package has a wheel for ARM (aarch64); pip only looks.
test-arm: env
	$(BIN)/python tools/aarch64.py tools/constraints-*.txt

# The HTML report in Chromium, which is installed if missing; that needs root and apt-get. `make test`
# runs these tests, too, if Chromium is there.
test-browser: env
	FLEET_TEST_CHROMIUM="$$(tools/chromium.sh)" && export FLEET_TEST_CHROMIUM && \
		$(BIN)/python -m pytest -rs tests/fleet/monitor/test_browser.py $(PYTEST_ARGS)

# The wheel, also in new environments in which pip installs all that a run needs: downloads TensorFlow
# and PyTorch.
test-wheel: env
	$(BIN)/python -m pytest -rs tests/mpi/test_wheel.py $(PYTEST_ARGS)

# The tests that `make test` leaves out. None starts after FLEET_TEST_UNTIL (seconds of `date +%s`).
test-long: env
	$(BIN)/python -m pytest -n $(WORKERS) -m "long and not cluster" $(PYTEST_ARGS)

# All tests. FLEET_TEST_EXAMPLES is a factor for the number of random examples.
test-all: env
	$(BIN)/python -m pytest -n $(WORKERS) $(PYTEST_ARGS)

# Lines and branches covered by all tests, including MPI ranks and other processes.
coverage: export COVERAGE_RCFILE := $(CURDIR)/pyproject.toml
coverage: export COVERAGE_FILE := $(CURDIR)/build/coverage/data
coverage: env
	rm -rf build/coverage && mkdir -p build/coverage
	$(BIN)/python -m coverage run -m pytest $(PYTEST_ARGS)
	$(BIN)/coverage combine -q && $(BIN)/coverage report --skip-covered --sort=miss

# Whole launches in one process, with faults: the cases that failed once, each in ten orders of events, then
# the seeds of the day for five minutes. SIMULATE_ARGS chooses other seeds, for instance --seeds 7.
simulate: env
	$(BIN)/python -m tests.simulate --seeds 0:10 $(addprefix --case ,$(sort $(wildcard tests/simulate/found/*.json)))
	$(BIN)/python -m tests.simulate $(or $(SIMULATE_ARGS),--seeds $(shell date -u +%Y%m%d)0000: --seconds 300)

# Tests on a separate Slurm with four virtual nodes, installed if missing; needs root and apt-get.
test-cluster: env
	$(BIN)/python -m pytest -rs -m "not long" tests/cluster $(PYTEST_ARGS)

# Also the full trials of ten minutes and more each, which print their measurements.
test-cluster-all: env
	$(BIN)/python -m pytest -rsP tests/cluster $(PYTEST_ARGS)

# Faults at random moments: takes an hour and writes docs/measured/faults.md. Needs root to fill up disks.
chaos: env
	$(BIN)/python -m tests.chaos $(or $(CHAOS_ARGS),--document docs/measured/faults.md $(if $(wildcard runs/digits/events.jsonl),--run runs/digits))

format: env
	$(BIN)/ruff format .

check: env
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	cd benchmarks && $(BIN)/mypy --config-file ../pyproject.toml --cache-dir ../.mypy_cache *.py

# The site in build/site, by tools in a separate environment. All links are checked.
docs: export NO_MKDOCS_2_WARNING := 1
docs: env
	$(BIN)/python -m venv .venv-docs
	.venv-docs/bin/python -m pip install -qq -e '.[docs]'
	.venv-docs/bin/mkdocs build --strict

# Benchmarks; DATA is the folder of published traces and of CIFAR-10 as JPEG files, if available.
bench: env
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/steps.py
	$(BIN)/python benchmarks/sharing.py
	$(BIN)/python benchmarks/planning.py
	$(BIN)/python benchmarks/reservations.py
	$(BIN)/python benchmarks/large.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/eviction.py
	$(BIN)/python benchmarks/elastic.py
	$(if $(DATA),$(BIN)/python benchmarks/idle_nodes.py --data $(DATA)/idle_nodes)
	$(if $(DATA),$(BIN)/python benchmarks/versus.py --jpegs $(DATA)/cifar10_jpeg.tar)
	$(if $(DATA),$(BIN)/python benchmarks/stream.py --jpegs $(DATA)/cifar10_jpeg.tar)

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
