# Two commands a newcomer needs: `make demo` and `make test`. Each builds .venv by itself when it is missing or stale.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check clean

$(READY): pyproject.toml constraints.txt
	@if ! $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
	  echo "deephealth needs Python 3.11 or newer, and '$(PYTHON)' is not; name one: make PYTHON=/path/to/python3.11 …" >&2; \
	  exit 1; fi
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[demo,dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/deephealth demo --out demo

test: $(READY)
	$(BIN)/python -m pytest

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) demo
