# Two commands, from an empty clone with only Python 3.11 and pip:
#   make demo    train, test and certify two small models, and write one page with the result
#   make test    lint, types and tests
# Each makes .venv first, and does so again only when pyproject.toml or constraints.txt changed.

# the first Python 3.11 that runs (a version manager's shim may be on the path and not work)
PYTHON ?= $(shell for p in $$(which -a python3.11 python3 2>/dev/null); do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null \
	&& echo $$p && break; done)
BIN := .venv/bin
READY := .venv/ready
WORKERS ?= 2

.PHONY: demo test check setup clean

demo: $(READY)
	$(BIN)/turnwise demo

# one thread each: the tests are many small tensors
test: check
	OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist loadfile

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 with venv and pip is needed; say make PYTHON=/path/to/python3.11" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis turnwise-demo
