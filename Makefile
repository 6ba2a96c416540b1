# Each target works as the first command on a fresh clone: it makes .venv and installs what it needs, once.
PYTHON ?= python3
BIN := .venv/bin
DEV := all,bench,deploy-checks,dev
# What uv.lock holds for some extras, then weir itself: a folder has no hash.
install = deploy/install.sh $(BIN)/python $(1) && $(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
MINIO := v0.0.0-20260212201848-7aac2a2c5b7c

.PHONY: campaign stream-campaign demo gpu-check docs docs-version native native-check test lint format mutants proof proof-quick bench cluster-check deploy-check drill tools engines engines-stop lock upgrade sbom audit dist release-check
.DEFAULT_GOAL := demo

demo: .venv/runtime.stamp  ## the whole path on this machine, on a generated log or on LOG=path
	$(BIN)/weir up --demo --once --fresh $(if $(LOG),--log "$(LOG)")

# Half of the time of a test that starts processes is waiting: one process more than cores, and the long files first.
# A process whose interpreter hangs cannot stop its test: it ends after the longest limit of a test, with its stacks.
# No other takes its place: with those, pytest-xdist 3.8 may wait for ever at the end (its issue 1378).
test: .venv/dev.stamp  ## all tests, a process for each core and one more, but at most four
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1) --maxprocesses 4 --dist loadfile --no-loadscope-reorder \
		--max-worker-restart 0 -o faulthandler_timeout=1260 -o faulthandler_exit_on_timeout=true

lint: .venv/dev.stamp .venv/buf/node_modules .venv/tools/protoc-gen-openapi  ## style, types, import rules, generated code, the API as clients know it
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	proto/generate.sh --check
	proto/breaking.sh

format: .venv/dev.stamp  ## repair the style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/docs.stamp  ## the documentation as a site in build/docs; a broken link fails
	$(BIN)/zensical build --strict --clean

docs-version: .venv/docs.stamp .venv/dev.stamp  ## the documentation of this version, into the site of all versions in the folder SITE
	$(BIN)/zensical build --strict --clean --config-file mkdocs.versions.yml
	$(BIN)/python -m deploy.docs_site build/docs $(SITE) $$($(BIN)/uv version --short)

mutants: .venv/dev.stamp  ## the share of 300 small faults that the unit tests notice; some twenty minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutants

campaign: .venv/dev.stamp  ## kill every stage, race writers, damage every kind of file, each with an oracle, and run the pages' long commands; two hours
	WEIR_CAMPAIGN=long OMP_NUM_THREADS=1 $(BIN)/pytest tests/campaigns tests/docs/test_commands.py --timeout 3600 --ignore tests/campaigns/test_stream_kills.py

stream-campaign: .venv/dev.stamp  ## kill a stream on Kafka and Flink a hundred times while it commits five million events; an hour, needs `make tools`
	WEIR_CAMPAIGN=long OMP_NUM_THREADS=1 $(BIN)/pytest tests/campaigns/test_stream_kills.py

drill: .venv/dev.stamp  ## cause faults for real and see that the alerts fire and resolve; some four minutes, needs `apt install prometheus`
	OMP_NUM_THREADS=1 $(BIN)/python -m deploy.monitoring.drill

proof-quick: .venv/dev.stamp  ## do the defaults beat simple methods, and which correction: tables of a small generated log, in minutes
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.proof quick
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.clustered generated

proof: .venv/dev.stamp  ## the same for the demo's log and the data sets in WEIR_DATA, in hours
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.proof full
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.clustered films

bench: .venv/dev.stamp  ## measurements, peers and limits in the same run (the quick ones; --help lists the others)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.sketches speed
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.sketches accuracy
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.sketches drift

gpu-check: .venv/dev.stamp  ## all that needs a GPU, without Beam, as build/gpu-check.md; some minutes, and nothing without a GPU
	$(BIN)/python -m benchmarks.gpu_check

deploy-check: .venv/dev.stamp .venv/checkov/bin/checkov .venv/operator/node_modules .venv/operator/crds  ## a policy scanner and the operators' types over deploy/
	deploy/check.sh

cluster-check: .venv/dev.stamp  ## the single node on the cluster of the current kube context: pods, answers, metrics, an alert; some ten minutes
	$(BIN)/python -m deploy.cluster_check

lock: .venv/uv.stamp  ## what pyproject.toml asks for, with hashes, into uv.lock; versions that still fit stay
	$(BIN)/uv lock

upgrade: .venv/uv.stamp  ## the newest versions that fit, with hashes, into uv.lock and requirements-uv.txt
	$(BIN)/uv lock --upgrade
	echo uv | $(BIN)/uv pip compile --quiet --upgrade --generate-hashes --no-header --no-annotate --output-file requirements-uv.txt -

sbom: .venv/dev.stamp  ## what users install, as CycloneDX in build/weir.cdx.json; fails on a licence that deploy/licences.toml does not allow
	$(BIN)/python -m deploy.sbom build/weir.cdx.json

audit: .venv/uv.stamp  ## known vulnerabilities of what uv.lock holds; asks osv.dev, so part of releases only
	$(BIN)/uv audit --frozen

dist: .venv/dev.stamp  ## the source distribution and the wheel, in dist
	rm -rf dist
	$(BIN)/uv build --no-build-isolation --out-dir dist

release-check: .venv/uv.stamp  ## whether TAG is that of this version, and CHANGELOG.md tells of it
	@test "$(TAG)" = "v$$($(BIN)/uv version --short)" || { echo "$(TAG) is not the version in pyproject.toml"; exit 1; }
	@grep -q "^## \[$(TAG:v%=%)\]" CHANGELOG.md || { echo "CHANGELOG.md has no section of $(TAG:v%=%)"; exit 1; }

engines: .venv/runtime.stamp  ## Kafka on 127.0.0.1:19092 and Flink on 127.0.0.1:8081; needs Java 11 or 17 and Maven
	$(BIN)/python -m deploy.engines start

engines-stop: .venv/runtime.stamp  ## stops them
	$(BIN)/python -m deploy.engines stop

tools: .venv/tools/minio .venv/clients/node_modules .venv/clients/go/ready .venv/dev.stamp  ## for tests: S3 (needs Go), clients (Node, Go), Kafka and Flink (Java, Maven), the compiled front (Rust), Redis and Chromium (apt); they skip without
	@$(BIN)/python -m deploy.engines fetch --optional
	@if command -v cargo > /dev/null; then $(MAKE) --no-print-directory native || echo "tools: skipped, the compiled front cannot be built"; \
	else echo "tools: skipped, there is no Rust to build the compiled front with"; fi
	@command -v redis-server > /dev/null || command -v valkey-server > /dev/null \
	|| (apt-get update && apt-get install --yes --no-install-recommends redis-server) > /dev/null 2>&1 \
	|| echo "tools: skipped, Redis cannot be installed: apt install redis-server"
	@(command -v chromium && command -v chromedriver) > /dev/null \
	|| (apt-get update && apt-get install --yes --no-install-recommends chromium chromium-driver) > /dev/null 2>&1 \
	|| echo "tools: skipped, Chromium cannot be installed: apt install chromium chromium-driver"

native: .venv/front.stamp  ## the compiled front of the server, for serving.front = native; a minute or two, needs Rust

.venv/front.stamp: .venv/runtime.stamp native/Cargo.toml native/Cargo.lock native/pyproject.toml $(wildcard native/src/*.rs)
	CARGO_TARGET_DIR=$(CURDIR)/.venv/front $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall ./native
	@touch $@

native-check: native .venv/dev.stamp  ## the tests of serving against the compiled front, after a change of native/; ten minutes
	cargo fmt --check --manifest-path native/Cargo.toml
	CARGO_TARGET_DIR=$(CURDIR)/.venv/front cargo clippy --quiet --all-targets --locked --manifest-path native/Cargo.toml -- --deny warnings
	CARGO_TARGET_DIR=$(CURDIR)/.venv/front cargo test --quiet --locked --manifest-path native/Cargo.toml
	WEIR_TEST_FRONT=native OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist loadfile tests/serving tests/integration/test_serving_*.py tests/integration/test_native_front.py

# Releases of MinIO are no versions of a Go module: this is the commit of one.
.venv/tools/minio:
	@if command -v go > /dev/null; then GOBIN=$(CURDIR)/.venv/tools go install github.com/minio/minio@$(MINIO); \
	else echo "tools: skipped, there is no Go to build MinIO with"; fi

# What the examples of docs/clients.md need.
.venv/clients/node_modules: | .venv/bin/python
	@mkdir -p .venv/clients
	@echo '{"private": true}' > .venv/clients/package.json
	@if command -v npm > /dev/null; then npm install --silent --no-audit --no-fund --prefix .venv/clients @grpc/grpc-js@1.14.7 @grpc/proto-loader@0.8.1 \
	|| echo "tools: skipped, npm cannot fetch gRPC for Node"; \
	else echo "tools: skipped, there is no npm to fetch gRPC for Node with"; fi

.venv/clients/go/ready: | .venv/bin/python
	@if command -v go > /dev/null; then deploy/go_client.sh .venv/clients/go || echo "tools: skipped, gRPC for Go cannot be built"; \
	else echo "tools: skipped, there is no Go to build a client with"; fi

.venv/tools/protoc-gen-openapi:
	@if command -v go > /dev/null; then GOBIN=$(CURDIR)/.venv/tools go install github.com/google/gnostic/cmd/protoc-gen-openapi@v0.7.1; fi

.venv/checkov/bin/checkov: | .venv/bin/python
	$(BIN)/python -m venv .venv/checkov
	.venv/checkov/bin/pip install --quiet --disable-pip-version-check checkov==3.3.30

.venv/buf/node_modules:
	mkdir -p .venv/buf
	echo '{"private": true}' > .venv/buf/package.json
	if command -v npm > /dev/null; then npm install --silent --no-audit --no-fund --prefix .venv/buf @bufbuild/buf@1.75.0; fi

.venv/operator/node_modules:
	mkdir -p .venv/operator
	echo '{"private": true, "type": "module"}' > .venv/operator/package.json
	npm install --silent --no-audit --no-fund --prefix .venv/operator @kubernetes-models/prometheus-operator@6.0.0 typescript@5.9.3

.venv/operator/crds: deploy/operators.xml
	@if command -v mvn > /dev/null; then rm -rf $@; deploy/operators.sh $@; \
	else echo "deploy-check: resources of Flink and Kafka are not checked, there is no Maven to fetch their definitions"; fi

# uv.lock is for Linux: elsewhere nothing would be installed, in silence.
.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.platform != "linux" and "weir runs on Linux: on another system use WSL or a container (docs/install.md)")'
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15) and "weir needs Python 3.11 to 3.14: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv

.venv/uv.stamp: requirements-uv.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements-uv.txt
	@touch $@

.venv/runtime.stamp: pyproject.toml uv.lock .venv/uv.stamp
	@echo "Installing weir into .venv: 5.5 GB on disk (2 without CUDA: docs/install.md), a few minutes the first time"
	$(call install,all)
	@touch $@

.venv/docs.stamp: pyproject.toml uv.lock .venv/uv.stamp
	$(call install,docs)
	@touch $@

.venv/dev.stamp: pyproject.toml uv.lock .venv/uv.stamp
	@echo "Installing weir and its development tools into .venv: 6 GB on disk, a few minutes the first time"
	$(call install,$(DEV))
	@touch $@ .venv/runtime.stamp
