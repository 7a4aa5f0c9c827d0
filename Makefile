# Laminar's commands. `make help` lists them; ARGS="..." goes on to the command below.
# Python is always called as `python -m ...`: a script's #! line breaks in a path with a space.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo check test test-long soak rehearse up down status logs backup restore lint format lock migration setup setup-dev chromium bubblewrap vllm

PYTHON ?= python3
ARGS ?=
VLLM ?=
export VLLM
VENV := "$(CURDIR)/.laminar/venv/bin/python"
# These three never make or renew an environment: it may be the one that is running.
IF_SET_UP := [ -x $(VENV) ] || { echo "Nothing is set up here. Run make up first."; exit 0; };

# mypy's Django plugin imports backend.settings, which wants the whole environment. Nothing listens there.
LINT_ENVIRONMENT := \
	LAMINAR_DATABASE_URL=postgresql://lint:lint@127.0.0.1:1/lint LAMINAR_BROKER_URL=redis://127.0.0.1:1/0 \
	LAMINAR_SECRET_KEY=lint-only LAMINAR_PUBLIC_URL=http://127.0.0.1:1 LAMINAR_CONTROL_URL=http://127.0.0.1:1 \
	LAMINAR_RAY_URL=http://127.0.0.1:1 LAMINAR_RAY_TOKEN_FILE=/dev/null LAMINAR_STORE_DIR=/nonexistent \
	LAMINAR_ALLOWED_HOSTS=127.0.0.1

PURE_TESTS := tests/engine/policy tests/engine/pipeline tests/engine/algorithms tests/verdict tests/test_architecture.py

help: ## list the commands
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

demo: setup ## set up, start all services, train a small model and show its reward before and after
	@$(VENV) -m infra.local demo $(ARGS)

check: lint ## lint, and the tests that need no service, no browser and no Ray
	@env $(LINT_ENVIRONMENT) $(VENV) -m pytest -n auto $(PURE_TESTS) $(ARGS)

test: setup-dev chromium bubblewrap vllm ## the gate: every test but the long ones (ARGS="tests/engine -k repack" for some)
	@$(VENV) -m $(if $(ARGS),infra.local.testing -- $(VENV) -m pytest $(ARGS),infra.suite gate)

test-long: setup-dev chromium bubblewrap vllm ## the long tests (ARGS=tests/engine/live for one folder)
	@$(VENV) -m infra.suite long $(ARGS)

soak: setup-dev chromium bubblewrap vllm ## run the long versions too: thousands of seeds, random kills (hours)
	@$(VENV) -m infra.local.testing -- $(VENV) -m pytest -m soak -o faulthandler_timeout=0 $(ARGS)

rehearse: setup-dev ## test docker-compose.yml on a separate container engine: kill, upgrade, restore, remove (root)
	@$(VENV) -m infra.rehearse $(ARGS)

up: setup ## start all services on this machine
	@$(VENV) -m infra.local up $(ARGS)

down: ## stop all services; data stays in .laminar/
	@$(IF_SET_UP) $(VENV) -m infra.local down $(ARGS)

status: ## show the state and address of each service
	@$(IF_SET_UP) $(VENV) -m infra.local status $(ARGS)

logs: ## show the newest lines of every log (ARGS="web -f" follows one)
	@$(IF_SET_UP) $(VENV) -m infra.local logs $(ARGS)

backup: ## back up database, files and secrets (ARGS="--keep 7"; infra/OPERATING.md)
	@$(IF_SET_UP) $(VENV) -m infra.backup take $(ARGS)

restore: setup ## restore the newest backup (ARGS="--to '2026-11-23 14:00' --replace"), after make down
	@$(VENV) -m infra.backup restore $(ARGS)

lint: setup-dev ## check style, types and import contracts
	@failed=0; stage() { echo "== $$1"; shift; "$$@" || failed=1; }; \
	stage "ruff: rules"  $(VENV) -m ruff check .; \
	stage "ruff: format" $(VENV) -m ruff format --check .; \
	stage "mypy: types"  env $(LINT_ENVIRONMENT) $(VENV) -m mypy --explicit-package-bases .; \
	stage "import-linter: contracts" \
		$(VENV) -c "from importlinter.cli import lint_imports_command; lint_imports_command()"; \
	exit $$failed

format: setup-dev ## format the code
	@$(VENV) -m ruff check --fix-only .
	@$(VENV) -m ruff format .

lock: setup-dev ## write infra/locks/*.txt from pyproject.toml (ARGS=--upgrade for newer releases)
	@$(VENV) infra/locks/make_locks.py $(ARGS)

migration: setup-dev ## write the migration of an app with changed models (ARGS=accounts)
	@$(VENV) -m infra.local.testing -- $(VENV) manage.py makemigrations $(ARGS)

setup:
	@"$(PYTHON)" -m infra.setup

setup-dev:
	@"$(PYTHON)" -m infra.setup --dev

chromium:
	@bash infra/chromium.sh

bubblewrap:
	@bash infra/bubblewrap.sh

vllm: ## set up vLLM in .laminar/vllm (VLLM=cpu or cuda; make test VLLM=0 skips it)
	@if [ "$(VLLM)" = 0 ]; then echo "VLLM=0: skipping the tests that run inside vLLM (tests/vllm)."; \
	else "$(PYTHON)" -m infra.setup --vllm "$(VLLM)"; fi
