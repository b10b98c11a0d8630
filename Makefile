# make demo | test | check | fuzz | fuzz-importers | corpus | bench | test-latest-torch | clean
# PYTHON=python3.12 make test   uses another interpreter for a new environment

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
TOOLS := pytest hypothesis mypy ruff playwright \
	perfetto protobuf prometheus_client jsonschema opentelemetry-proto
# What the integrations are tested against; the tests of one that is absent skip and say so.
STACKS := mpi4py mpich "ray[default,train]" lightning transformers accelerate deepspeed jax
LATEST := .venv-latest

.PHONY: demo test check fuzz fuzz-importers corpus bench test-latest-torch clean

demo: $(VENV)/.ready
	$(BIN)/evenstep demo

test: $(VENV)/.ready
	$(BIN)/python -m pytest

check: $(VENV)/.ready
	$(BIN)/ruff check src tests benchmarks examples docs
	$(BIN)/ruff format --check src tests benchmarks examples docs
	$(BIN)/mypy

# The property tests on a thousand new cases each: minutes, and in no CI.
fuzz: $(VENV)/.ready
	EVENSTEP_FUZZ=1 $(BIN)/python -m pytest tests/pacing tests/trace tests/diagnose tests/importers tests/simulate

# Coverage-guided, for the importers: five minutes.
fuzz-importers: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet atheris
	$(BIN)/python -m tests.fuzz.importers -- -max_total_time=300

# The diagnosis on labelled traces, and on real jobs with real faults.
corpus: $(VENV)/.ready
	$(BIN)/python -m benchmarks corpus --wrong
	$(BIN)/python -m benchmarks corpus --real --wrong

bench: $(VENV)/.ready
	$(BIN)/python -m benchmarks

# The environment is ready when its stamp is newer than the project's description. torch comes
# first and alone: users bring their own build, so nothing of ours may pull one in.
$(VENV)/.ready: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --editable ".[all]" $(TOOLS)
	for stack in $(STACKS); do \
		$(BIN)/python -m pip install --quiet $(TORCH) $$stack \
			|| echo "$$stack could not be installed: its tests will skip"; done
	touch $@

# About 5 GB: the newest torch has the process-group hooks that the pinned build lacks.
test-latest-torch: $(LATEST)/.ready
	$(LATEST)/bin/python -m pytest tests/hooks tests/agent

$(LATEST)/.ready: pyproject.toml
	test -x $(LATEST)/bin/python || $(PYTHON) -m venv $(LATEST)
	$(LATEST)/bin/python -m pip install --quiet torch
	$(LATEST)/bin/python -m pip install --quiet --editable ".[all]" pytest hypothesis
	touch $@

clean:
	rm -rf $(VENV) $(LATEST) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
