# Everything runs in .venv, which is made on first use, and again when the pins or what is compiled change.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test lint types format clean

demo: $(INSTALLED)  ## correct a text and quote from references, plain and copied side by side
	$(BIN)/python -m examples.demo

test: $(INSTALLED)
	$(BIN)/python -m pytest -n auto --maxprocesses 4

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# One pip command with the constraints: without them torch alone resolves to the newest build
# and gigabytes of CUDA packages.
$(INSTALLED): pyproject.toml constraints.txt $(wildcard copyspec/drafters/copying/native/*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "The pinned environment needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info
