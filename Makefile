# Two commands do everything: `make demo` and `make test`. Each sets up what it needs; both need Python alone.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
BROKER ?= dev
ARGS   ?=
# Many containers set it; each of our processes would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test verify verify-parts e2e node walks long lint bench docs lock sbom audit release-check clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.run ## Make .venv with everything that the demo needs

demo: $(VENV)/.run ## Run the main job on this machine (BROKER=kafka: against a real Apache Kafka)
ifeq ($(BROKER),kafka)
	$(BIN)/python -m tests.support.kafka -- $(BIN)/slackwater demo $(ARGS) --bootstrap {bootstrap}
else
	$(BIN)/slackwater demo $(ARGS)
endif

test: $(VENV)/.dev ## Run the tests (ARGS=path::name: one; CHANGED=1: what a change since main can reach)
	$(BIN)/python -m tests.run test $(if $(CHANGED),--changed) $(ARGS)

verify: $(VENV)/.dev ## Run the tests on real parts: Kafka, a control plane, PostgreSQL, Prometheus (root, Maven, Go)
	$(BIN)/python -m tests.run verify $(if $(CHANGED),--changed) $(ARGS)

# Build what `make verify` needs and run nothing
verify-parts: $(VENV)/.dev
	$(BIN)/python -m tests.support.parts

e2e: $(VENV)/.dev ## Run every test on a real control plane, the longest, too (PROTOCOL=Consumer: those of groups by it)
	SLACKWATER_TEST_GROUP_PROTOCOL=$(PROTOCOL) $(BIN)/python -m pytest -m controlplane $(ARGS) $(E2E_$(PROTOCOL))

PROTOCOL     ?= Classic
E2E_Classic  := tests/e2e
E2E_Consumer := tests/e2e/faults tests/e2e/operations tests/e2e/rollouts

node: $(VENV)/.dev ## Run the scenarios on a real node: kubelet, containerd, images built here (root; undoes what it changes)
	$(BIN)/python -m pytest -m node -s $(ARGS) tests/node

walks: $(VENV)/.dev ## Paste the tutorials and the README into fresh clones, and print how long each block took
	$(BIN)/python -m tests.walks $(ARGS)

long: $(VENV)/.dev ## Run the longest tests that need no control plane: chaos, old brokers, other clients
	$(BIN)/python -m pytest -m "long and not controlplane and not node" $(IN_TWO) $(ARGS)
	SLACKWATER_TEST_BROKERS=kafka-4.4,kafka-4.3,kafka-3.9,kafka-2.8 $(BIN)/python -m pytest $(IN_TWO) \
	  -m "not long and not controlplane and not node" -k kafka- $(ON_EACH_KAFKA)

# Some have a limit on time, which more processes would exceed.
IN_TWO := --numprocesses=2 --dist=loadgroup --no-loadscope-reorder

# Tests with the fixture `broker`, on the dev broker in `make test`.
ON_EACH_KAFKA := tests/client/integration tests/worker/integration tests/pipeline/integration/sinks

lint: $(VENV)/.dev ## Check style, types, layers and the commits' subjects
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/rumdl check --silent .
	$(BIN)/mypy worker/slackwater operator/slackwater_operator examples benchmarks .ci/gate.py tests/run.py tests/walks.py tests/mutants tests/support tools/chart tools/dashboards \
	  tools/cli_docs tools/client_docs tools/demo_cast tools/kafka_python_suite tools/release
	$(BIN)/lint-imports
	@git log -50 --format=%s 2>/dev/null | awk 'length > 72 { print "commit subject of more than 72 characters: " $$0; bad = 1 } END { exit bad }'

bench: $(VENV)/.dev ## Measure against the peers (results are printed, not kept)
	$(BIN)/python -m benchmarks $(ARGS)

docs: .cache/docs/.made ## Build the documentation's site: .cache/site/index.html
	NO_MKDOCS_2_WARNING=1 .cache/docs/bin/python -m mkdocs build --quiet

# Make the lock files anew
lock: $(VENV)/.run
	cd requirements && for set in uv build run dev jdk worker worker-delta worker-spark operator audit docs moto release \
	    kubectl-slackwater; do \
	  ../$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	    --no-emit-package slackwater --no-emit-package slackwater-operator \
	    --custom-compile-command "make lock" $(ARGS) $$set.in -o $$set.txt || exit 1; done

# Write what is in the images: .cache/sbom/NAME.cdx.json (CycloneDX)
sbom: .cache/audit/.made
	mkdir -p .cache/sbom
	for set in $(IMAGES); do \
	  .cache/audit/bin/cyclonedx-py requirements requirements/$$set.txt --pyproject $${set%%-*}/pyproject.toml \
	    --sv 1.6 --of JSON --output-reproducible $(SBOM_CHECK) -o .cache/sbom/$$set.cdx.json || exit 1; done

# Look the locked packages up among known vulnerabilities (asks PyPI's service)
audit: .cache/audit/.made
	for set in $(IMAGES); do \
	  .cache/audit/bin/pip-audit --strict --require-hashes --disable-pip -r requirements/$$set.txt $(ARGS) || exit 1; done

# Make and check what a release publishes (Go)
release-check: $(VENV)/.dev .cache/audit/.made .cache/release-tools/.made
	$(BIN)/python -m tools.release $(ARGS)

clean: ## Remove what the commands above made
	rm -rf $(VENV) .demo .cache

IMAGES := operator worker worker-delta worker-spark
# What cyclonedx-py writes is valid; its check takes nine tenths of the time. A release has it: --validate.
SBOM_CHECK ?= --no-validate

# A virtual environment of its own, with what the lock file has; anew, so that it holds in a clone that was moved, too.
tools = PYTHON="$(PYTHON)" ./setup.sh tools $(@D) $<

.cache/audit/.made: requirements/audit.txt
	$(tools)
	touch $@

MERMAID := mermaid-11.17.2.tgz
MERMAID_SHA256 := 6ad2f42c3fc26bbf9e45cbb6d11898972573ea52b33a5f4ff51952899f950ffd

.cache/docs/.made: requirements/docs.txt
	$(tools)
	cd .cache/docs && npm pack --silent mermaid@$(patsubst mermaid-%.tgz,%,$(MERMAID)) > packed.txt
	cd .cache/docs && echo "$(MERMAID_SHA256)  $(MERMAID)" | sha256sum --check --quiet
	cd .cache/docs && tar -xzf $(MERMAID) --strip-components=2 package/dist/mermaid.min.js && rm $(MERMAID)
	touch $@

.cache/release-tools/.made: requirements/release.txt
	$(tools)
	touch $@

SOURCES := worker/pyproject.toml worker/slackwater/version.py worker/setup.py $(wildcard worker/slackwater/kafka/records/*.pyx) operator/pyproject.toml

$(VENV)/.run: requirements/uv.txt requirements/build.txt requirements/run.txt requirements/jdk.txt $(SOURCES) setup.sh
	PYTHON="$(PYTHON)" ./setup.sh run

$(VENV)/.dev: requirements/dev.txt $(VENV)/.run
	./setup.sh dev
