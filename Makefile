# From an empty clone, with Python 3.11, 3.12 or 3.13 and pip:
#   make demo    train, test and certify two small models, and write one page with the result
#   make test    lint, types and tests
#   make slow    the tests that `make test` leaves out
#   make docs    the documentation site, in site/; a broken link is an error
#   make release wheel and sdist in dist/, checked in a clean environment
#   make fuzz    hostile inputs for FUZZ_MINUTES=10, new ones in every run; stops at the first finding
# Each makes .venv first, and again only when pyproject.toml or constraints.txt changed.

# the first of these that runs and has venv (3.11 comes first: the tested CPU build of torch is for it)
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	2>/dev/null && command -v $$p && break; done)
RUN := .venv/bin/python
READY := .venv/ready
EXTRAS ?= dev
WORKERS ?= 2

FUZZ_MINUTES ?= 10

.PHONY: demo test slow fuzz check docs release setup clean

demo: $(READY)
	$(RUN) -m turnwise demo

# one thread each: the tests are many small tensors
test: check
	OMP_NUM_THREADS=1 $(RUN) -m pytest -n $(WORKERS) --dist loadfile

slow: $(READY)
	OMP_NUM_THREADS=1 $(RUN) -m pytest -n $(WORKERS) --dist loadfile -m slow

fuzz: $(READY)
	end=$$(( $$(date +%s) + 60 * $(FUZZ_MINUTES) )); while [ $$(date +%s) -lt $$end ]; do \
	FUZZ=1 OMP_NUM_THREADS=1 $(RUN) -m pytest -x tests/fuzz || exit 1; done

check: $(READY)
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

docs: .venv/docs-ready
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

release:
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 to 3.13 with venv and pip is needed" >&2; exit 2; }
	tools/check_release.sh "$(PYTHON)"

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: Python 3.11 to 3.13 with venv and pip is needed; run make PYTHON=/path/to/python" >&2; exit 2; }
	test -x $(RUN) || "$(PYTHON)" -m venv .venv
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS)]"
	touch $@

# a second step, because `make test` does not need it
.venv/docs-ready: $(READY)
	$(RUN) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $@

clean:
	rm -rf site dist .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis turnwise-demo
