# `make pretrain` and `make test` are all a fresh machine needs (Python 3.11 or later, pip, make).
PYTHON ?= python3
# The versions that are tested, torch as its CPU build; `make install CONSTRAINTS=` lifts them.
CONSTRAINTS ?= constraints-cpu.txt
VENV := .venv
BIN := $(VENV)/bin
PIP_CONSTRAINTS := $(if $(CONSTRAINTS),-c $(CONSTRAINTS))

.PHONY: install pretrain test test-all check docs dist bench speedrun bench-gpu clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nlpkit needs Python 3.11 or \
	later, and $(PYTHON) is %d.%d; name another: make install PYTHON=python3.12" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(PIP_CONSTRAINTS) -e '.[dev]' 1>&2
	touch $@

pretrain: install
	@$(BIN)/nlpkit pretrain recipes/cpm_ant.yaml

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, in site/: open site/index.html. A dead link or anchor is an error.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The wheel and the sdist, in dist/.
dist: install
	$(BIN)/python -m build --no-isolation

# The tests of a file on one worker, which share its runs; the longest files first (see
# tests/conftest.py). On two cores a third worker uses the time in which others wait.
PYTEST := $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test: check
	$(PYTEST) -m "not slow and not gpu and not real_data"

# The long proofs and those with ../shared/data, too.
test-all: check
	$(PYTEST) -m "not gpu"

# Training steps of the command line against transformers' Trainer, every kind of attention against
# torch's own, our BLEU against sacrebleu, our BM25 against bm25s; tables on stdout.
bench: install
	$(BIN)/python bench/steps.py
	$(BIN)/python bench/attention.py
	OMP_NUM_THREADS=1 $(BIN)/python bench/score_bleu.py
	OMP_NUM_THREADS=1 $(BIN)/python bench/score_bm25.py

# The records of docs/speedrun.md: seconds of training to a fixed held-out loss.
speedrun: install
	$(BIN)/python bench/speedrun.py

# Every backend of attention and a training step of each family on a GPU; exit code 2 without one.
# `make clean bench-gpu CONSTRAINTS=` installs torch with CUDA first.
bench-gpu: install
	$(BIN)/python bench/gpu.py

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache
