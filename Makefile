# The course's commands. Each sets up .venv by itself first; a second run does no work twice.
# Without make (Windows): README.md gives the plain command behind each target.
PYTHON ?= python3
HW ?= hw1_policy_gradient
RUN := .venv/bin/python
# JupyterLab refuses to run as root unless told that it is meant (containers).
LAB_ARGS ?= $(if $(filter 0,$(shell id -u)),--allow-root)
export PATH := $(CURDIR)/.venv/bin:$(PATH)

.DEFAULT_GOAL := help
.PHONY: help setup lab test lectures homework grade site bench lint

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r n t; do printf '  make %-10s %s\n' "$$n" "$$t"; done

setup: ## create .venv and install everything (each command below does this first)
	@$(PYTHON) bootstrap.py

lab: setup ## open JupyterLab on the course's start page
	@$(RUN) -m jupyterlab $(LAB_ARGS) --ServerApp.root_dir=. --LabApp.default_url=/lab/tree/lectures/README.md

test: setup ## run the whole test suite (the browser tests need chromium)
	@$(RUN) -m pytest $(ARGS)

lectures: setup ## run all lectures from fresh kernels and print the seconds (ARGS="--out DIR")
	@$(RUN) -m lectures.execute $(ARGS)

homework: setup ## for instructors: regenerate homework/ from solutions/ (replaces what is there)
	@$(RUN) -m autograder release

grade: setup ## grade a folder of submissions: make grade HW=hw3_group_methods [DIR=submissions]
	@$(RUN) -m autograder grade $(HW) $(DIR) $(ARGS)

site: setup ## build the course as pages that open from disk: build/site/index.html
	@$(RUN) -m website.build

bench: setup ## measure speed (`pip install trl==1.16.0` for TRL's part, chromium for the widgets')
	@$(RUN) -m benchmarks.toy_loop
	@$(RUN) -m benchmarks.trainer_step
	@$(RUN) -m benchmarks.generation
	@$(RUN) -m benchmarks.logprob_memory
	@$(RUN) -m benchmarks.grading
	@$(RUN) -m benchmarks.widget_latency

lint: setup ## check style with ruff
	@$(RUN) -m ruff check . && $(RUN) -m ruff format --check .
