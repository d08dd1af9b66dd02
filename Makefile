# Targets that need .venv make or mend it first (scripts/setup.sh): quick when nothing changed.
# ARGS is passed on: make test-unit ARGS="-k steps", make demo ARGS=--help
# SGLANG=0.5.16 does the same with that release, in an environment beside (.venv-0.5.16).

.DEFAULT_GOAL := help
.PHONY: help setup browser clients demo test test-unit test-full test-next check docs wheel pocket pin clean
export SGLANG
export VENV := .venv$(addprefix -,$(SGLANG))
PYTHON_RUN := $(VENV)/bin/python
PYTEST := $(PYTHON_RUN) -m pytest

help:  ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

setup:  ## make or mend .venv
	@bash scripts/setup.sh

demo: setup  ## answer a few questions on three real SGLang runtimes, on this machine
	@$(VENV)/bin/lr-sglang demo $(ARGS)

browser:
	@bash scripts/browser.sh

clients: setup
	@bash scripts/clients.sh

test: setup browser clients  ## all tests, those on servers beside the others
	env -u LR_SGLANG_FULL bash scripts/test.sh $(PYTHON_RUN) $(ARGS)

test-unit: setup  ## the tests that start nothing: under a minute
	env -u LR_SGLANG_FULL $(PYTEST) tests/unit $(ARGS)

test-full: setup browser clients  ## all tests, the long ones too, and each mode with the other release of SGLang
	LR_SGLANG_FULL=1 bash scripts/test.sh $(PYTHON_RUN) $(ARGS)
	[ -n "$(SGLANG)" ] || $(MAKE) test-full SGLANG=0.5.16 ARGS="-k four_modes_side_by_side"

test-next:  ## install the newest SGLang there is, also a pre-release, and say what breaks
	@bash scripts/next.sh

check: setup  ## lint, format, types, and who may import whom
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(PYTHON_RUN) scripts/imports.py

docs: setup  ## write docs/cli.md, and build the pages into build/site
	@bash scripts/docs.sh --write

wheel: setup  ## build the wheel and try it alone, with one question on real servers
	@bash scripts/wheel_test.sh $(ARGS)

pocket: setup  ## train the pocket models again, from nothing, in build/pocket
	$(PYTHON_RUN) -m tools.pocket.train --role all $(ARGS)

pin: setup  ## write constraints.txt (or that of SGLANG) from what .venv holds
	bash scripts/pin.sh

clean:  ## remove caches and build outputs, not .venv
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find lr_sglang programs tools tests examples -name __pycache__ -prune -exec rm -rf {} +
