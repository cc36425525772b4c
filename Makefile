# make demo and make test do all their own set-up, in .venv.
PYTHON ?= python3
VENV ?= .venv
# The executor's tests need torch, and the trainers that they run; `make test TORCH=` leaves both out, and skips them.
TORCH ?= torch
# What make demo makes of its plan; `make demo PAGE=` prints the report alone, which needs no extra.
PAGE ?= --html out/report.html
comma := ,
EXTRAS := test,lint$(if $(TORCH),$(comma)integrations)
BIN := $(VENV)/bin
# A path, which type checkers follow; they do not run the import hook that is setuptools' default.
EDITABLE := --quiet --config-settings editable_mode=compat

.PHONY: demo pictures notebooks site docs release test nightly lint coverage bench clean

$(BIN)/pip:
	$(PYTHON) -c 'import sys; sys.exit("seqbalancer needs Python 3.11 or newer, not " + sys.version.split()[0]) if sys.version_info < (3, 11) else 0'
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: pyproject.toml constraints.txt | $(BIN)/pip
	$(BIN)/pip install $(EDITABLE) --constraint constraints.txt --editable '.[$(EXTRAS)]' $(TORCH)
	touch $@

$(VENV)/demo: pyproject.toml constraints.txt | $(BIN)/pip
	$(BIN)/pip install $(EDITABLE) --constraint constraints.txt --editable '.[plot]'
	touch $@

demo: $(VENV)/demo  ## Plan a real log, check the plan that was written, and make a page of it
	mkdir -p out
	$(BIN)/balancer plan data/omni_mix_dev.parquet --ranks 64 --ranks-per-node 8 --batch-per-rank 16 \
	    --length text_tokens+image_tokens+audio_tokens --out out/plan.parquet
	$(BIN)/balancer report out/plan.parquet $(PAGE)

pictures: $(VENV)/installed  ## The pictures of the README and the site, light and dark: docs/pictures/
	$(BIN)/python docs/draw.py

$(VENV)/docs: pyproject.toml constraints.txt | $(BIN)/pip
	$(BIN)/pip install $(EDITABLE) --constraint constraints.txt --editable '.[docs]'
	touch $@

notebooks: $(VENV)/installed  ## The notebooks run anew, and kept with what they print and draw
	$(BIN)/python tools/run_notebooks.py

site: $(VENV)/docs  ## The site in out/site, a warning being an error; it needs no torch
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going --doctree-dir out/doctrees docs out/site

docs: site $(VENV)/installed  ## The site, and each of its pages looked at in a browser, wide and narrow, light and dark
	$(BIN)/python -m pytest -q tests/site

release: $(VENV)/docs  ## sdist and wheel in dist/, checked, and run from a fresh environment
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tools/check_wheel.py dist/*.whl

test: export PYTHONDONTWRITEBYTECODE =  # or else each of the processes that tests start compiles all modules anew
test: $(VENV)/installed  ## The whole suite, with the README's and the docstrings' examples
	$(BIN)/balancer warmup --jobs 2  # or else the suite's processes compile the same kernels
	$(BIN)/python -m pytest -q -n 3  # more than cores: some tests wait for processes

nightly: $(VENV)/installed  ## Ranks killed and stopped, properties by the ten thousand, fuzzed readers, kernels as Python: hours
	$(BIN)/pip install --quiet --constraint constraints.txt atheris ray
	$(BIN)/python -m pytest -q -m nightly tests/executor
	$(BIN)/python tests/fuzz/guided.py --seconds 120 --out out/fuzz
	$(BIN)/python -m pytest -q -n 2 -m "hypothesis or nightly or more_by_night" --hypothesis-profile=nightly --ignore=tests/executor
	NUMBA_DISABLE_JIT=1 $(BIN)/python -W error -m pytest -q -n 2

lint: $(VENV)/installed  ## Formatting, linting, types, and the direction of imports
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

coverage: $(VENV)/installed  ## Kernels run as Python, or else their coverage would lie
	NUMBA_DISABLE_JIT=1 $(BIN)/coverage run -m pytest -q
	$(BIN)/coverage combine --quiet || true
	$(BIN)/coverage report

bench: $(VENV)/installed  ## Speed as ratios in one run, and gaps to the best possible; others: docs/benchmarks.md
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/quality.py

clean:
	rm -rf $(VENV) out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage*
