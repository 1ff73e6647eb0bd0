SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
venv := .venv
ready-run := $(venv)/.ready-run
ready := $(venv)/.ready
ready-pipeline := $(venv)/.ready-pipeline
reports := reports
# What is made to be taken elsewhere, and the image's name.
DIST := dist
REPOSITORY := tickover
version = $(shell sed -n 's/^version = "\(.*\)"$$/\1/p' pyproject.toml)
# Tests of processes and services, and Spark, which mostly wait. The others compute all the time.
waiting := tests/integration tests/pipeline
pytest := $(venv)/bin/pytest
shared := --dist loadfile --no-loadscope-reorder
classes := build/kafka-classes.jsa

# Where this is set, every start of pytest compiles all tests anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' Makefile

.PHONY: setup
setup: $(ready) ## Create .venv with the locked dependencies, the tools of developers included, and the tickover command
	@:

$(ready): requirements/dev.txt $(ready-run)
	@$(venv)/bin/python requirements/install requirements/dev.txt
	@$(compile)
	@touch $(ready)

# Nothing of the tools for developers: the first table of the demo is on the screen in half the time.
$(ready-run): requirements/run.txt requirements/build.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tickover needs Python 3.11 or newer")'
	@test -x $(venv)/bin/python || { echo "creating $(venv)"; $(PYTHON) -m venv $(venv); }
	@$(venv)/bin/python requirements/install requirements/run.txt requirements/build.txt
	@$(venv)/bin/python -m pip install --quiet --no-input --no-deps --no-build-isolation --editable .
	@touch $(ready-run)

# What pip does by itself, on all processors. Some packages bring files for other Pythons, which don't compile.
compile = $(venv)/bin/python -m compileall -q -q -j 0 $(venv)/lib || true

.PHONY: setup-pipeline
setup-pipeline: $(ready-pipeline) ## Add what the jobs on Spark need to .venv (700 MB)
	@:

$(ready-pipeline): requirements/pipeline.txt $(ready)
	@$(venv)/bin/python requirements/install requirements/pipeline.txt
	@$(compile)
	@touch $(ready-pipeline)

archive := build/tickover.zip

.PHONY: pipeline-archive
pipeline-archive: setup ## Build build/tickover.zip: tickover's packages, for spark-submit --py-files
	@mkdir -p $(dir $(archive))wheel && rm -f $(dir $(archive))wheel/*
	@$(venv)/bin/python -m pip wheel --quiet --no-input --no-deps --no-build-isolation --wheel-dir $(dir $(archive))wheel .
	@mv $(dir $(archive))wheel/tickover-*.whl $(archive) && rmdir $(dir $(archive))wheel

.PHONY: run
run: $(ready-run) ## Start everything on this machine with a live demo
	@$(venv)/bin/tickover demo

.PHONY: test
test: system-packages setup ## Run every check and every test, those on real Kafka and Redis included
	@$(MAKE) --jobs --output-sync=target setup-pipeline check docker $(classes)
	@mkdir -p $(reports) && rm -f $(reports)/*.xml $(reports)/*.log
	@status=0; \
	$(MAKE) --jobs=2 --keep-going test-computing test-waiting || status=$$?; \
	cat $(reports)/computing.log; \
	$(venv)/bin/python -m tests.gate $(reports)/computing.xml $(reports)/waiting.xml || status=1; \
	exit $$status

# Side by side: what computes gives way, and takes what the tests that wait leave of the processors.
.PHONY: test-computing
test-computing:
	@TICKOVER_TEST_RUN=0/2 TICKOVER_TEST_SIM_SEEDS=$${TICKOVER_TEST_SIM_SEEDS:-24} \
		TICKOVER_TEST_HISTORIES=$${TICKOVER_TEST_HISTORIES:-12} nice -n 5 \
		$(pytest) $(waiting:%=--ignore=%) -n 2 $(shared) --hypothesis-profile=half --durations=15 \
		--junitxml=$(reports)/computing.xml > $(reports)/computing.log 2>&1

.PHONY: test-waiting
test-waiting:
	@TICKOVER_TEST_RUN=1/2 $(pytest) $(waiting) -n 3 $(shared) --durations=60 --junitxml=$(reports)/waiting.xml

.PHONY: test-fast
test-fast: setup ## Run the quick ones of the tests that need no service, with fewer examples and seeds
	@TICKOVER_TEST_SIM_SEEDS=$${TICKOVER_TEST_SIM_SEEDS:-6} TICKOVER_TEST_HISTORIES=$${TICKOVER_TEST_HISTORIES:-6} \
		$(pytest) -m "not integration and not slow" --hypothesis-profile=fast -n 2 --dist loadfile

.PHONY: integration
integration: system-packages setup setup-pipeline docker $(classes) ## Run only the tests that need Kafka, Redis or Docker
	@$(pytest) -m integration

.PHONY: integration-reference
integration-reference: setup ## Run the tests of the sidecar on the reference broker: no Java, no Docker (FILES=some of them)
	@TICKOVER_TEST_KAFKA=reference $(pytest) -n 2 --dist loadfile -m "integration and not apart" \
		$(or $(FILES),tests/integration)

.PHONY: differential
differential: setup ## Ask one and three reference brokers, and as many real ones, the same: the answers must be the same
	@TICKOVER_TEST_SOAK=1 $(pytest) tests/contract/broker/test_broker_differential.py \
		tests/integration/broker/groups/test_coordinators_differential.py \
		tests/integration/broker/cluster/test_cluster_differential.py

.PHONY: sim
sim: setup ## Run the engine's seeded simulation: TICKOVER_TEST_SIM_SEEDS=n seeds (10,000) of each guarantee; then sim-redis
	@TICKOVER_TEST_SIM_SEEDS=$${TICKOVER_TEST_SIM_SEEDS:-10000} $(pytest) -n 2 tests/simulation/test_simulation.py \
		-k "not met_everything"
	@$(MAKE) sim-redis

.PHONY: sim-redis
sim-redis: setup ## Run the simulation over Redis: TICKOVER_TEST_SIM_REDIS_SEEDS=n seeds (1,000) of each guarantee
	@TICKOVER_TEST_SIM_REDIS_SEEDS=$${TICKOVER_TEST_SIM_REDIS_SEEDS:-1000} $(pytest) -n 2 \
		tests/simulation/test_simulation_redis.py -k "not met_everything"

.PHONY: sim-operations
sim-operations: setup ## Run the simulation of operations: TICKOVER_TEST_OPERATIONS_SEEDS=n seeds (10,000)
	@TICKOVER_TEST_OPERATIONS_SEEDS=$${TICKOVER_TEST_OPERATIONS_SEEDS:-10000} $(pytest) -n 2 -p no:logging tests/operations \
		-k "not met_everything"

.PHONY: reliability
reliability: setup ## Write docs/RELIABILITY.md from the runs recorded in docs/reliability
	@$(venv)/bin/python -m tests.reliability

.PHONY: mutants
mutants: setup ## Put mistakes into a copy of the engine, one at a time: the simulation must find each
	@$(venv)/bin/python -m tests.mutants

.PHONY: kills
kills: setup setup-pipeline ## Kill the pipeline's jobs in the middle of a write, at every place that is tried (CI: one of each job)
	@TICKOVER_TEST_SOAK=1 $(pytest) tests/pipeline/warehouse/test_kills.py tests/pipeline/reports/test_storms.py -k killed

.PHONY: soak
soak: system-packages setup ## Do random faults for MINUTES=30, and judge: status 1 when anything was violated
	@$(venv)/bin/python -m tests.soak --minutes $(or $(MINUTES),30) $(SOAK)

.PHONY: nemesis
nemesis: system-packages setup $(classes) ## Kill, freeze, restart and cut off brokers for MINUTES=30 (as root), time each round, and judge
	@$(venv)/bin/python -m tests.nemesis --minutes $(or $(MINUTES),30) $(NEMESIS)

.PHONY: bench
bench: setup ## Run all benchmarks, each beside its baseline (20 minutes on an idle machine)
	@for name in overflow throughput lateness guarantees memory start burst rebuild redrive idle deciding timers timer_lateness purgatory_load; do \
		$(venv)/bin/python -m benchmarks.$$name || exit; \
	done

.PHONY: check
check: setup ## Check format, lint, types, layers and the tidy rules
	@$(venv)/bin/ruff format --check --quiet .
	@$(venv)/bin/ruff check --quiet .
	@$(venv)/bin/mypy
	@$(venv)/bin/lint-imports
	@$(pytest) -q tests/unit/project/test_tidy.py

.PHONY: fmt
fmt: setup ## Format the code and fix what the linter can fix
	@$(venv)/bin/ruff format .
	@$(venv)/bin/ruff check --fix-only .

.PHONY: lock
lock: setup ## Refresh the hashed lock files from pyproject.toml
	@requirements/compile $(venv)/bin/uv

.PHONY: wheel
wheel: setup ## Build the sdist, and of it the wheel, into dist
	@$(venv)/bin/python -m tests.release wheel $(DIST)

.PHONY: chart
chart: setup ## Pack the Helm chart into dist
	@$(venv)/bin/python -m tests.release chart $(DIST)

.PHONY: image
image: ## Build the image tickover:<version>, also tickover:local (PYTHON_IMAGE=its base, REPOSITORY=its name)
	@docker build --tag $(REPOSITORY):$(version) --tag $(REPOSITORY):local \
		$(if $(PYTHON_IMAGE),--build-arg BASE=$(PYTHON_IMAGE)) \
		$(if $(filter 1,$(PIP_NO_INDEX)),--build-arg PIP_NO_INDEX=1 --network none) \
		--build-arg REVISION=$$(git rev-parse HEAD 2>/dev/null || echo unknown) .

# For another Python than the one here: make wheels WHEELS_PYTHON=3.12. Conditions of the lists are left out, since they
# would be judged for the one here.
.PHONY: wheels
wheels: setup ## Fetch the wheels for an image build without a package index, into requirements/wheels
	@rm -rf requirements/wheels && mkdir -p build
	@for list in build run; do \
		sed 's/ ; .*/ \\/' requirements/$$list.txt > build/$$list.txt; \
		$(venv)/bin/python -m pip download --quiet --no-deps --only-binary :all: --require-hashes $(wheels_for) \
			--dest requirements/wheels --requirement build/$$list.txt || exit; \
	done

glibc := 2_34 2_28 2_17
wheels_for = $(if $(WHEELS_PYTHON),--python-version $(WHEELS_PYTHON) \
	$(foreach version,$(glibc),--platform manylinux_$(version)_$(shell uname -m)) --platform manylinux2014_$(shell uname -m))

.PHONY: sbom
sbom: setup ## Write dist/sbom.cdx.json: the locked requirements with licences and what needs what, as CycloneDX
	@$(venv)/bin/python -m tests.release sbom $(DIST)

.PHONY: system-packages
system-packages: ## Install the Debian packages that the tests use (as root; else says what is missing)
	@tests/system-packages

.PHONY: docker
docker:
	@{ tests/services/dockerd start && PYTHON=$(venv)/bin/python tests/images/build; } \
		|| echo "tests in containers are left out" >&2

$(classes): sidecar/embedded/pom.xml | setup
	@echo "making an archive of Kafka's classes, for quicker brokers"
	@$(venv)/bin/python -m tests.services.class_archive || echo "brokers take longer to start" >&2

.PHONY: version
version: setup ## Write VERSION=x.y.z into every place that states it, and make its section of the changelog
	@$(venv)/bin/python -m tests.version "$(VERSION)"
	@$(MAKE) setup

.PHONY: release
release: setup ## Make a release but for publishing it: all of dist, built, installed, run, audited, with checksums
	@$(venv)/bin/python -m tests.release $(DIST)

.PHONY: docs
docs: setup ## Build the documentation site into reports/site; a dead link or a page without a place is an error
	@NO_MKDOCS_2_WARNING=1 $(venv)/bin/mkdocs build --strict
	@echo "reports/site/index.html"

.PHONY: pages
pages: setup ## Write the pages that are made from the code: settings, headers, metrics, errors, REST, commands
	@$(venv)/bin/python -m tests.pages

.PHONY: pictures
pictures: setup setup-pipeline ## Make the pictures of docs/console.md anew, by chromium, from the tests' console
	@TICKOVER_TEST_PICTURES=1 $(venv)/bin/pytest -q tests/process/api/console/test_pictures.py

REDOC := 2.5.4

.PHONY: redoc
redoc: ## Fetch the renderer of the API's page again, from its npm package (REDOC=version)
	@rm -rf build/redoc && mkdir -p build/redoc
	@npm pack --silent --pack-destination build/redoc redoc@$(REDOC) >/dev/null
	@tar -xzf build/redoc/redoc-$(REDOC).tgz -C build/redoc
	@cp build/redoc/package/bundles/redoc.standalone.js api/redoc/
	@cd build/redoc/package && { cat LICENSE; printf '\nWhat is bundled with it:\n\n'; \
		cat bundles/redoc.standalone.js.LICENSE.txt bundles/*.worker.js.LICENSE.txt; } \
		| sed 's/[[:space:]]*$$//' > ../../../api/redoc/LICENSE.txt

HTMX := 2.0.11
UPLOT := 1.6.32

.PHONY: console
console: ## Fetch the console's scripts again, from their npm packages (HTMX=version UPLOT=version)
	@rm -rf build/console && mkdir -p build/console/htmx build/console/uplot
	@npm pack --silent --pack-destination build/console htmx.org@$(HTMX) uplot@$(UPLOT) >/dev/null
	@tar -xzf build/console/htmx.org-$(HTMX).tgz -C build/console/htmx
	@tar -xzf build/console/uplot-$(UPLOT).tgz -C build/console/uplot
	@cp build/console/htmx/package/dist/htmx.min.js api/console/static/htmx/
	@cp build/console/uplot/package/dist/uPlot.iife.min.js build/console/uplot/package/dist/uPlot.min.css api/console/static/uplot/
	@for name in htmx uplot; do \
		sed 's/[[:space:]]*$$//' build/console/$$name/package/LICENSE > api/console/static/$$name/LICENSE.txt; done
	@cd api/console/static && sha256sum htmx/*.js uplot/*.js uplot/*.css > vendored.sha256

.PHONY: up
up: data/tokens/tokens.yaml readable ## Start it all in containers (docker compose), with PROFILE=observability Grafana too
	@$(compose) $(if $(PROFILE),--profile $(PROFILE)) up --build --detach
	@echo "Kafka at localhost:19092, API at http://localhost:8230 (bearer token in data/token)"
	@echo "$(if $(PROFILE),Grafana at http://localhost:3000$(comma) Prometheus at http://localhost:9090)"

# A checkout under umask 077: the containers' users are others. A token's hash may be read, the token may not.
.PHONY: readable
readable: data/tokens/tokens.yaml
	@chmod -R a+rX examples/compose charts/tickover/files data/tokens

.PHONY: down
down: ## Stop the containers of `make up` and delete their data
	@$(compose) --profile observability down --volumes

comma := ,
compose = $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)

data/tokens/tokens.yaml: | $(ready-run)
	@mkdir -p data/tokens
	@$(venv)/bin/python -c 'from pathlib import Path; from api.access.auth import new_token; \
	token, digest = new_token(); \
	Path("data/token").touch(0o600); Path("data/token").write_text(token + "\n"); \
	Path("$@").write_text(f"- {{name: local, role: admin, hash: \"{digest}\"}}\n")'
