# make demo | test | test-stacks | test-gpu | mutants | check | check-js | docs | dist | fuzz | fuzz-importers | corpus
# make test-torch-versions | clean
# PYTHON=python3.12 make test   uses another interpreter for a new environment

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := torch==2.13.0
TOOLS := pytest pytest-xdist hypothesis coverage mypy ruff playwright \
	perfetto protobuf prometheus_client jsonschema opentelemetry-proto \
	mkdocs-material "mkdocstrings[python]" promql-parser grafana-foundation-sdk \
	kubernetes-validate kubeflow-trainer-api hatchling pandas polars
# What the integrations are tested against; the tests of one that is absent skip and say so.
RANKS := mpi4py mpich jax otf2
STACKS := lightning transformers accelerate deepspeed "ray[default,train]"
VERSIONED := .venv-torch

.PHONY: demo test test-stacks test-gpu mutants check check-js docs dist fuzz fuzz-importers corpus bench test-torch-versions clean

demo: $(VENV)/.installed
	$(BIN)/evenstep demo

# Else every process that a test starts compiles all that it imports anew.
unexport PYTHONDONTWRITEBYTECODE

# All but the real jobs of other stacks, whose waits are compared with a clock: those are below.
# What fails is tried once more, alone, and told as RERUN: a job of several processes may meet a
# machine that stands still for seconds. A line RERUN is a defect of that test, to be mended. A file's
# tests share what they made: each file goes to one of the two processes.
ALL := --ignore=tests/stacks --ignore=tests/frameworks -m "not clock"
test: $(VENV)/.ready
	$(BIN)/python -m pytest $(ALL) -n 2 --dist loadfile --no-loadscope-reorder -rsfE \
		|| { test $$? -eq 1 && echo "RERUN of what failed" \
		&& $(BIN)/python -m pytest $(ALL) --last-failed --last-failed-no-failures=none -rfE; }

# Every stack really runs, with a known delay, and so does every job that a page tells to start. Wants
# a machine that does nothing else: some six minutes.
test-stacks: $(VENV)/.stacks
	$(BIN)/python -m pytest tests/stacks tests/frameworks
	$(BIN)/python -m pytest tests/probe tests/agent -m clock

check: $(VENV)/.ready
	$(BIN)/ruff check src lab tests benchmarks examples docs
	$(BIN)/ruff format --check src lab tests benchmarks examples docs
	$(BIN)/mypy

# The types of the page's scripts; asks npm for the compiler.
check-js:
	npx --yes -p typescript@7 tsc -p tests/report/tsconfig.json

# The documentation as a site that opens from disk: build/docs/index.html
docs: $(VENV)/.ready
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# What is published: source and wheel, whose description a package index can show.
dist: $(VENV)/.ready
	rm -rf dist
	$(BIN)/python -m pip install --quiet build twine
	$(BIN)/python -m build --quiet
	$(BIN)/python -m twine check --strict dist/*

# The property tests on a thousand new cases each: minutes, and in no CI.
fuzz: $(VENV)/.ready
	EVENSTEP_FUZZ=1 $(BIN)/python -m pytest tests/pacing tests/trace tests/diagnose tests/importers tests/simulate

# How many small changes of the code a test notices, in every package of tests/mutants.py; of one it
# takes minutes: python -m tests.mutants PACKAGE.
SAMPLE ?= 40
mutants: $(VENV)/.ready
	$(BIN)/python -m tests.mutants --sample $(SAMPLE)

# Everything that reads what others wrote: numbered inputs under limits, then coverage-guided ones.
# A night on two cores: make fuzz-importers INPUTS=1000000 SECONDS=28800
INPUTS ?= 100000
SECONDS ?= 300
fuzz-importers: $(VENV)/.ready
	$(BIN)/python -W ignore -m tests.fuzz.trial 1000000 $(INPUTS)
	$(BIN)/python -m pip install --quiet atheris
	$(BIN)/python -m tests.fuzz.guided -- -max_total_time=$(SECONDS) -rss_limit_mb=4096

# The diagnosis on labelled traces, and on real jobs with real faults.
corpus: $(VENV)/.ready
	$(BIN)/python -m benchmarks corpus --wrong
	$(BIN)/python -m benchmarks corpus --real --wrong
	$(BIN)/python -m benchmarks independent_corpus --wrong

bench: $(VENV)/.ready
	$(BIN)/python -m benchmarks

# Each on its own: what cannot be installed costs only its own tests.
define install_each
	for package in $(1); do \
		$(BIN)/python -m pip install --quiet $(TORCH) $$package \
			|| echo "$$package could not be installed: its tests will skip"; done
endef

# A stamp is newer than the project's description. torch comes first and alone: users bring their
# own build, so nothing of ours may pull one in. What only tests need, no demo waits for.
$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --editable ".[all]"
	touch $@

$(VENV)/.ready: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --editable ".[all]" $(TOOLS)
	$(call install_each,$(RANKS))
	touch $@

$(VENV)/.stacks: $(VENV)/.ready
	$(call install_each,$(STACKS))
	touch $@

# What one device can show; elsewhere everything skips, with its reason.
test-gpu: $(VENV)/.ready
	$(BIN)/python -m pytest tests/gpu -rsfE
	$(BIN)/python -m benchmarks gpu

# Kernels must not depend on one torch: its hooks, attached and compiled, under one version after the
# other, each in an environment of its own that is removed. Some need 5 GB and minutes; in no CI.
# The last is the newest there is.
TORCHES ?= ==2.6.0 ==2.9.1 ==2.13.0 \>=2.13
test-torch-versions:
	for version in $(TORCHES); do \
		rm -rf $(VERSIONED) && $(PYTHON) -m venv $(VERSIONED) \
			&& $(VERSIONED)/bin/python -m pip install --quiet --no-cache-dir "torch$$version" numpy pytest hypothesis \
			&& $(VERSIONED)/bin/python -m pip install --quiet --no-cache-dir --editable ".[analyze]" \
			&& $(VERSIONED)/bin/python -m pytest -q -m "not clock" tests/hooks tests/agent tests/compiled \
			&& echo "torch $$version: passed" || echo "torch $$version: FAILED"; \
	done; rm -rf $(VERSIONED)

clean:
	rm -rf $(VENV) $(VERSIONED) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
