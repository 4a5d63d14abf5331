# make train: install, generate data, train BEV segmentation. make test: all checks but slow tests.
#   STACK=onedl (default) or openmmlab: the mm-stack; each has a separate venv
#   PYTHON=python3.12: the Python of the venv (default: python3)
#   JOBS=N: run N test files in parallel (default: number of cores, at most 4; 0: one process)
#   TEMPO=balanced, speed_first, memory_first, grad_accum or baseline: policy of make train
STACK ?= onedl
PYTHON ?= python3
VENV := $(if $(filter onedl,$(STACK)),.venv,.venv-$(STACK))
LOCK := requirements/lock-$(STACK).txt
BIN := $(VENV)/bin
TEMPO ?=
CONFIG ?= configs/lss_swin/lss_swin-mini_1xb4-300_synthetic-bev.py
DATA := data/synthetic_bev
MULTICAM := data/synthetic_multicam
PYTEST_ARGS ?=
JOBS ?= logical
READY := $(VENV)/.ready

ifeq ($(wildcard $(LOCK)),)
$(error STACK=$(STACK) is not known; use STACK=onedl or STACK=openmmlab)
endif

.PHONY: help setup data data-multicam train test test-slow format clean

help:
	@sed -n '1,/^$$/s/^# *//p' Makefile
	@echo "targets: setup data data-multicam train test test-slow format clean"

setup: $(READY)

$(READY): $(LOCK) requirements/runtime.txt setup.py tools/misc/install_stack.py
	$(PYTHON) tools/misc/install_stack.py $(STACK) $(VENV)
	@touch $@

data: $(DATA)/calib.json

$(DATA)/calib.json: | $(READY)
	$(BIN)/python tools/dataset_converters/make_synthetic_bev.py $(DATA) --num 400 --num-val 60 --size 800 450

data-multicam: $(MULTICAM)/calib.json

$(MULTICAM)/calib.json: | $(READY)
	$(BIN)/python tools/dataset_converters/make_synthetic_bev.py $(MULTICAM) --multicam --num 200 --num-val 40 --size 352 198

train: $(READY) data
	$(BIN)/python tools/train.py $(CONFIG) $(if $(TEMPO),--tempo $(TEMPO))

test: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/pytest -m "not slow" -n $(JOBS) --maxprocesses 4 --dist loadfile $(PYTEST_ARGS)

test-slow: $(READY)
	$(BIN)/pytest -m slow $(PYTEST_ARGS)

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv .venv-openmmlab build work_dirs $(DATA) $(MULTICAM) .mypy_cache .ruff_cache .pytest_cache
