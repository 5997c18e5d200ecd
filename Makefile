# Sluice: `make up` runs it on a local cluster, `make test` tests it. `make` lists the rest.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON := .venv/bin/python
# Bytecode is kept even where the environment forbids it: the tests start dozens of processes, each
# of which would otherwise compile all that it imports. It stays out of the tree.
BYTECODE := PYTHONDONTWRITEBYTECODE= PYTHONPYCACHEPREFIX="$(CURDIR)/.cache/bytecode"
PYTEST := $(BYTECODE) OMP_NUM_THREADS=1 .venv/bin/pytest
# How a stage went: its slowest tests, a report, and what failed, of which AGAIN=1 runs that alone.
RESULTS ?= .cache/stages
OF_STAGE = --durations=15 --junitxml=$(RESULTS)/$@$(AGAIN).xml -o cache_dir=$(CURDIR)/$(RESULTS)/$@ $(if $(AGAIN),--lf --lfnf=none)
SOURCES := operator runtime kernels e2e tests benchmarks images docs dashboards release
MODEL ?= dummy://qwen3-tiny
CLUSTER ?=
# Of CLUSTER=current: where its images are pushed to and pulled from, HOST[:PORT][/PATH].
REGISTRY ?=
export CLUSTER REGISTRY

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

## Run it

.PHONY: up
up: ## cluster, images, operator, a sample service, one streamed completion
	@scripts/setup --minimal
	@$(PYTHON) -m e2e.up

.PHONY: down
down: ## remove the cluster and everything it made on this machine
	@scripts/setup --minimal
	@$(PYTHON) -m e2e.cluster down

.PHONY: kubectl
kubectl: ## kubectl against the local cluster: make kubectl ARGS="get infsvc"
	@[ -x $(PYTHON) ] || scripts/setup --minimal
	@$(PYTHON) -m e2e.cluster kubectl $(ARGS)

.PHONY: serve
serve: ## one engine without a cluster: make serve MODEL=FOLDER|hf://org/name|smollm2 PORT=8000 CONFIG=engine.json SETTINGS='{"schedulingPolicy": "lpm"}'
	@scripts/setup --serve "$$MODEL"
	@exec scripts/serve "$$MODEL" "$$PORT" "$$CONFIG" "$$SETTINGS"

## Test it

.PHONY: test
test: check test-process test-apiserver test-cluster ## every test, set-up included

.PHONY: check
check: lint types imports unit ## lint, types, import rules, unit tests: one to two minutes on two cores

.PHONY: setup
setup:
	@scripts/setup

.PHONY: lint
lint: setup
	.venv/bin/ruff check $(SOURCES)
	.venv/bin/ruff format --check $(SOURCES)

.PHONY: types
types: setup
	.venv/bin/mypy
	.venv/bin/mypy e2e docs dashboards release tests benchmarks

.PHONY: imports
imports: setup
	.venv/bin/lint-imports --no-cache

# Four workers, each with its share of the files: `SHARES` of tests/conftest.py.
.PHONY: unit
unit: setup
	$(PYTEST) -n 4 --dist each $(OF_STAGE)

.PHONY: test-process
test-process: prometheus ## whole engine processes: start, serve, drain, die
	$(PYTEST) -n 2 --dist loadgroup $(OF_STAGE) -m "process and not full"

# What takes minutes the first time is built before pytest, whose limit for a test would end it and
# which would keep its progress to itself.
.PHONY: binaries
binaries: setup
	@$(PYTHON) -m e2e.cluster build

.PHONY: prometheus
prometheus: setup
	@$(PYTHON) -m e2e.cluster build-monitoring

.PHONY: keda
keda: setup
	@$(PYTHON) -m e2e.cluster build-keda

.PHONY: released-model
released-model: setup
	@$(PYTHON) -m e2e.model.released

.PHONY: images
images: setup
	@$(PYTHON) -m e2e.images build engine-pretended router operator fetch

.PHONY: test-apiserver
test-apiserver: binaries ## the operator against a real etcd and API server, which five workers share: they wait most of the time
	$(PYTEST) -n 5 --dist loadgroup $(OF_STAGE) -m "apiserver and not full"

.PHONY: test-cluster
test-cluster: test-node test-stories ## the bare node, images, and the stories on a real cluster

# Alone: what a cluster leaves behind is seen by comparing the whole machine.
.PHONY: test-node
test-node: binaries images
	$(PYTEST) $(OF_STAGE) -m "cluster and not full and not gpu" tests

.PHONY: test-stories
test-stories: binaries images
	$(PYTEST) $(OF_STAGE) -m "cluster and not full and not gpu" e2e/stories

.PHONY: hypothesis
hypothesis: binaries ## every property test below a cluster, with random seeds and 25 times the examples of make check
	$(PYTEST) -n 2 --dist loadgroup --hypothesis-profile=full -m "hypothesis and not cluster and not gpu" --timeout 3600

.PHONY: mutate
mutate: setup ## breaks listed lines one at a time, and the tests must notice each: ONLY=router or part of a name
	$(PYTHON) -m tests.mutation "$(ONLY)"

.PHONY: test-full
test-full: test keda released-model ## the long matrices and soaks as well
	$(PYTEST) -m full tests e2e/stories --timeout 3600

.PHONY: soak
soak: setup ## ten minutes of two pools under load, engines killed and clients gone: nothing wrong, nothing leaks
	$(PYTEST) -m full tests/disaggregated/test_soak.py -k 600 -s --timeout 1200

.PHONY: attack
attack: setup ## two minutes (LONG=1: ten) of honest tenants beside hostile clients, engines hung and killed: none of them fails
	$(PYTEST) -m full tests/attack -k $(if $(LONG),600,120) -s --timeout 1200

.PHONY: test-aiohttp
test-aiohttp: setup ## the router's tests with the oldest and the newest aiohttp: AIOHTTP="3.13.5 3.14.1"
	scripts/test-aiohttp $(AIOHTTP)

.PHONY: compatibility
compatibility: setup ## other people's clients, load generators and linters against Sluice, and docs/compatibility.md: ONLY=guidellm
	OMP_NUM_THREADS=1 $(PYTHON) -m tests.clients.compatibility "$(ONLY)"

## On a GPU: each ends within eight minutes; the next run goes on where it was

GPU_RUN := python3 -m e2e.gpu_runs
# Not the stages' folder, which is the default above.
GPU_RESULTS = $(if $(filter file,$(origin RESULTS)),,$(RESULTS))
GPU_OPTIONS = $(if $(WHEELS),--wheels $(WHEELS)) $(if $(GPU_RESULTS),--results $(GPU_RESULTS)) $(if $(FRESH),--fresh) $(if $(COMPILE),--compile)

.PHONY: test-gpu
test-gpu: ## agreement, hand-over, sampling, kernels on this machine's GPU: CASES="graphs kernels" FRESH=1 RESULTS=FILE WHEELS=FOLDER COMPILE=1
	@$(GPU_RUN) test $(CASES) $(GPU_OPTIONS)

.PHONY: bench-gpu
bench-gpu: ## throughput, long prompts, where a step goes, on this machine's GPU; options as for test-gpu
	@$(GPU_RUN) bench $(CASES) $(GPU_OPTIONS)

NINE_OPTIONS = $(if $(DRY),--dry-run,--results $(GPU_RESULTS)/nine-minutes.jsonl) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(WHEELS),--wheels $(WHEELS)) $(if $(BEFORE),--before $(BEFORE))

.PHONY: gpu-nine-minutes
gpu-nine-minutes: ## the most telling of both on a GPU that is lent: RESULTS=FOLDER; DRY=1 shows what would run; SECONDS=240 WHEELS=FOLDER BEFORE=FILE
	@$(if $(DRY)$(GPU_RESULTS),,$(error RESULTS=FOLDER: where the results go))$(GPU_RUN) nine-minutes $(CASES) $(NINE_OPTIONS)

.PHONY: gpu-kernels
gpu-kernels: ## what both need, compiled ahead without a GPU, as one file: 25 minutes of CPU time for Hopper, then 54 for FA3
	@scripts/gpu-kernels

.PHONY: e2e-gpu
e2e-gpu: setup ## the stories on real GPUs: make e2e-gpu CLUSTER=current REGISTRY=registry.example.com/team
	@$(PYTHON) -m e2e.on_gpus

## Measure it: one JSON line a figure

.PHONY: bench-interference
bench-interference: setup ## a long prompt beside streams and before short ones: chunked and not, fixed chunks and the chosen one
	$(PYTHON) -m benchmarks.interference $(if $(FEATURES),--features)
	$(PYTHON) -m benchmarks.behind_a_long_prompt

.PHONY: bench-cpu
bench-cpu: setup ## the workload "CPU serving", beside transformers; PEERS=1: beside other engines too
	$(PYTHON) -m benchmarks.cpu_serving $(if $(PEERS),--beside transformers openvino vllm)

.PHONY: bench-int8
bench-int8: setup ## weights of 8 bits beside bfloat16 on CPUs: decode at 1 and 16 rows, and prompts; PEERS=1: beside OpenVINO's, too
	$(PYTHON) -m benchmarks.int8_weights $(if $(PEERS),--beside openvino)
	$(PYTHON) -m benchmarks.int8_weights --prefill $(if $(PEERS),--beside openvino)

.PHONY: bench-speculation
bench-speculation: setup ## drafts from prompt and answer, or of a model: tokens a second with and without, at 1 to 64 rows
	$(PYTHON) -m benchmarks.speculation

.PHONY: bench-host-cache
bench-host-cache: setup ## a second turn after eviction: from memory, from disk, hot, and computed anew
	$(PYTHON) -m benchmarks.host_cache

.PHONY: bench-kernels
bench-kernels: setup ## each compiled kernel on every instruction set, beside plain torch
	$(PYTHON) -m sluice_kernels.bench

.PHONY: bench-batching
bench-batching: setup ## continuous or static, chunks, mixed, overlap: when each pays, simulated and real
	$(PYTHON) -m benchmarks.batching

.PHONY: bench-scheduler
bench-scheduler: setup ## CPU time of the scheduler per step at 256 running requests, and of its tree
	$(PYTHON) -m benchmarks.scheduler_step $(if $(POLICIES),--policies)
	$(PYTHON) -m benchmarks.prefix_tree $(if $(SGLANG),--sglang $(SGLANG))

.PHONY: bench-host
bench-host: setup ## CPU time of the host in a decode step on GPUs, with nothing that computes: ARGS="--rows 256 64"
	OMP_NUM_THREADS=1 $(PYTHON) -m benchmarks.host_step $(ARGS)

.PHONY: bench-startup
bench-startup: setup ## process start to /health and to the first token
	$(PYTHON) -m benchmarks.startup

.PHONY: bench-router
bench-router: setup ## what the router adds to the time to first token
	$(PYTHON) -m benchmarks.router

.PHONY: bench-http
bench-http: setup ## CPU time a token of the API process and the router, 256 chats over HTTP, beside a bare server
	$(PYTHON) -m benchmarks.http

.PHONY: bench-transfer
bench-transfer: setup ## reading KV pages of another process, beside Mooncake's engine alone
	$(PYTHON) -m benchmarks.transfer

.PHONY: bench-pd
bench-pd: setup ## two pools beside the same engines mixed, for real; TRACES=FOLDER: simulated fleets too
	$(PYTHON) -m benchmarks.pd
	$(PYTHON) -m benchmarks.pd_handover
	$(if $(TRACES),$(PYTHON) -m benchmarks.pd_fleet --traces $(TRACES))

.PHONY: bench-autoscale
bench-autoscale: setup ## our scaling beside HPA, KEDA, a fixed size and a plan in hindsight: TRACES=FOLDER [ONLY=azure-conv] [PLOTS=FOLDER] [CLIMB=SECONDS] [HALF=choosing] [OURS=1]
	$(PYTHON) -m benchmarks.autoscale --traces $(TRACES) $(if $(ONLY),--only $(ONLY)) $(if $(PLOTS),--plots $(PLOTS)) $(if $(CLIMB),--climb $(CLIMB)) $(if $(HALF),--half $(HALF)) $(if $(OURS),--ours)

.PHONY: bench-judge
bench-judge: setup ## the judge of a canary on simulated pairs of revisions: wrong verdicts, and keys until the right one
	$(PYTHON) -m benchmarks.canary_judge

.PHONY: bench-operator
bench-operator: binaries ## 1,000 InferenceServices and 10,000 pods (KWOK) on a real API server: ARGS="--services 200"
	$(PYTHON) -m benchmarks.operator_scale $(ARGS)

## Work on it

.PHONY: format
format: setup ## format and fix what can be fixed
	.venv/bin/ruff check --fix-only --quiet $(SOURCES)
	.venv/bin/ruff format --quiet $(SOURCES)

.PHONY: crds
crds: setup ## write crds/ and the pages of docs/reference that say the same, from the types
	$(PYTHON) -m sluice_operator.cli.generate_crds
	$(PYTHON) -m docs.generate

.PHONY: dashboards
dashboards: setup ## write dashboards/generated: Grafana's pages, recording rules, alerts
	$(PYTHON) -m dashboards

.PHONY: chart
chart: setup ## write the Helm chart of manifests/chart with CRDs, alerts and dashboards into dist/sluice
	$(PYTHON) -m release chart dist

.PHONY: version
version: setup ## write a version everywhere: make version VERSION=0.2.0
	$(PYTHON) -m release version "$(VERSION)"

.PHONY: release-dry-run
release-dry-run: binaries ## what a release has beside its images, into dist: chart, install.yaml, crds.yaml
	$(PYTHON) -m release check-tag "v$$($(PYTHON) -c 'from sluice_contract.version import VERSION; print(VERSION)')"
	$(PYTHON) -m release files dist

.PHONY: pictures
pictures: binaries ## draw docs/pictures: a simulated burst, and the dashboards as a real Prometheus fills them
	$(PYTHON) -m docs.generate.burst
	SLUICE_PICTURES=docs/pictures $(PYTEST) -m full tests/dashboards/test_expressions.py tests/operator/live/test_panels.py

.PHONY: chat-picture
chat-picture: setup ## draw docs/pictures/chat.png, the page of an engine that `make serve MODEL=smollm2` runs; look at it
	$(PYTHON) -m docs.generate.chat_page

.PHONY: golden
golden: setup ## write tests/golden anew, many files at once; read the diff
	SLUICE_WRITE_GOLDEN=1 $(PYTEST) tests/operator
