# Two commands on a fresh machine: `make demo` and `make test`. Both set up .venv first.
# Needs Python >= 3.11, make, gcc/g++ and git.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
TORCH_INDEX := https://download.pytorch.org/whl/cpu

.PHONY: setup demo test unit lint types constraints pocket-table clean
.DEFAULT_GOAL := setup

setup: $(VENV)/.ready

# PyPI's torch for Linux brings several gigabytes of CUDA. PyTorch's own CPU index is used where it
# can be reached; elsewhere pip takes what its configured indexes offer.
#
# vLLM for the CPU also pulls torchvision, torchaudio and torchcodec. Text models need none of them,
# and PyPI's torchvision beside a CPU torch makes `import vllm` fail.
$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: $(PYTHON) is older than Python 3.11; run 'make PYTHON=python3.11 ...'." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	index=; if $(BIN)/python -c 'import urllib.request as r; r.urlopen("$(TORCH_INDEX)/torch/", timeout=5)' 2>/dev/null; \
	  then index="--extra-index-url $(TORCH_INDEX)"; fi; \
	$(PIP) install -q $$index -c constraints.txt torch && \
	$(PIP) install -q $$index -c constraints.txt -e '.[train,pipeline,ray,cpu,dev]'
	$(PIP) uninstall -q -y torchvision torchaudio torchcodec
	touch $@

demo: setup  ## The main job end to end on the embedded pool of three models.
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python pipelines/demo/run.py

test: setup  ## Every test: unit, integration (real vLLM on the CPU), golden; gpu where there is one.
	$(BIN)/pytest

unit: setup  ## The fast tests only.
	$(BIN)/pytest tests/unit -m "not integration"

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup
	$(BIN)/mypy

pocket-table: setup  ## Accuracy and length of the pocket models by difficulty, measured through vLLM.
	$(BIN)/chimera-train collect traces --pool pipelines/demo/pool.yaml --task arithmetic --workflow direct --limit 500 --out data/pocket
	$(BIN)/python pipelines/pocket/table.py --traces data/pocket

constraints: setup
	{ head -n 2 constraints.txt; $(BIN)/pip freeze --exclude-editable | sed 's/^\(torch==[0-9.]*\)+.*/\1/'; grep -E '^torch(audio|codec|vision)==' constraints.txt; } > constraints.new
	mv constraints.new constraints.txt

clean:
	find chimera_train -name '*.nb[ci]' -delete
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
