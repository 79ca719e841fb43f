# SPDX-License-Identifier: Apache-2.0
# `make` alone prints the targets. Everything Python runs from .venv, which `make deps` makes.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory

BIN := .venv/bin
CLANG ?= clang
CLANG_FORMAT ?= clang-format
PYTEST_ARGS ?=
BENCH_ARGS ?=
# Read by tools/install, which has their defaults.
export DESTDIR PREFIX BINDIR SYSCONFDIR UNITDIR DATADIR PIP_ARGS

OBJECT := ebpf/xdp_router.bpf.o
OBJECT6 := ebpf/xdp_router6.bpf.o
LOOKUP := ebpf/gateway_lookup.bpf.o
BPF_SOURCES := $(wildcard ebpf/*.bpf.c)
BPF_HEADERS := $(wildcard ebpf/*.h ebpf/lib/*.h)
BENCH_SOURCES := $(wildcard bench/ebpf/*.bpf.c bench/ebpf/*.h bench/compare/*.c)
FIRST_BYTE := build/bench/first_byte
# The uapi headers want <asm/types.h>, which Debian keeps in a folder named for the machine.
MULTIARCH = $(shell /usr/bin/python3 -c 'import sysconfig; print(sysconfig.get_config_var("MULTIARCH") or "")')
# Relative names in the line information: an object does not tell where it was built.
BPF_CFLAGS := -target bpf -mcpu=v3 -O2 -g -Wall -Werror -fno-stack-protector \
	-ffile-prefix-map=$(CURDIR)=.

.PHONY: help deps bench-deps clients-deps engines-deps fuzz-deps build check format test \
	test-clients test-engines demo demo-gateway chaos fuzz bench bench-compare compare \
	bench-gateway gateway bench-ttft ttft dist install uninstall clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: ## install what is missing: distribution packages and .venv (root when packages are missing)
	@tools/deps

bench-deps: deps ## also install what the benchmarks compare with and draw with: haproxy, nginx, matplotlib
	@tools/deps --bench

fuzz-deps: deps ## also install what finds bytes to fuzz with: atheris
	@tools/deps --fuzz

build: $(OBJECT) $(OBJECT6) $(LOOKUP) ## compile the BPF programs

$(OBJECT): FAMILY := 4
$(OBJECT6): FAMILY := 6
$(LOOKUP): FAMILY := 4
$(OBJECT) $(OBJECT6): SOURCE := xdp_router
$(LOOKUP): SOURCE := gateway_lookup
$(OBJECT) $(OBJECT6) $(LOOKUP): $(BPF_SOURCES) $(BPF_HEADERS) Makefile
	@command -v $(CLANG) >/dev/null || { \
		echo "make build: $(CLANG) was not found. Run: sudo make deps" >&2; exit 1; }
	@echo "  CLANG    $@"
	@$(CLANG) $(BPF_CFLAGS) -DXR_FAMILY=$(FAMILY) -Iebpf -I/usr/include/$(MULTIARCH) -c ebpf/$(SOURCE).bpf.c -o $@.tmp
	@mv $@.tmp $@

check: deps ## linters, types, import contracts, C format
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(CLANG_FORMAT) --dry-run -Werror $(BPF_SOURCES) $(BPF_HEADERS) $(BENCH_SOURCES)

format: deps ## format Python and C in place
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format
	$(CLANG_FORMAT) -i $(BPF_SOURCES) $(BPF_HEADERS) $(BENCH_SOURCES)

test: deps ## all tests; as root (sudo make test), else those that need root are skipped
	@$(MAKE) build
	@$(BIN)/python -m pytest --numprocesses=auto --dist=loadfile $(PYTEST_ARGS)

# A browser is 300 MB and an engine compiles for ten minutes: not in each 'make test'.
clients-deps: deps ## also install the browser that the gateway is tested with: chromium
	@tools/deps --clients

engines-deps: deps ## also compile a real inference engine, llama.cpp, in build/engines
	@tools/deps --engines

test-clients: clients-deps ## the gateway with curl, the openai package and a headless Chromium; as root
	@$(MAKE) build
	@$(BIN)/python -m pytest -m "netns or engines" $(PYTEST_ARGS) \
		tests/netns/test_curl_client.py tests/netns/test_openai_client.py \
		tests/engines/test_browser.py tests/engines/test_restarts.py

test-engines: engines-deps ## the gateway before real engines: llama.cpp, vLLM where it is installed; as root
	@$(MAKE) build
	@$(BIN)/python -m pytest -m engines $(PYTEST_ARGS) tests/engines/test_llama.py tests/engines/test_vllm.py

demo: deps ## three backends, one of them slow, and the router between them; as root
	@$(MAKE) build
	@$(BIN)/xdp-router lab demo

demo-gateway: deps ## three inference engines (mocks), and the gateway before them; as root
	@$(BIN)/xdp-router lab gateway

chaos: deps ## CHAOS_S=600 seconds of random trouble under 200 clients; as root
	@$(MAKE) build
	@export CHAOS_S="$${CHAOS_S:-600}" CHAOS_SEED="$${CHAOS_SEED:-$$RANDOM}"; \
	echo "chaos: $$CHAOS_S s, CHAOS_SEED=$$CHAOS_SEED"; \
	$(BIN)/python -m pytest -q --capture=no -o faulthandler_timeout=0 $(PYTEST_ARGS) tests/e2e/test_chaos.py

fuzz: fuzz-deps ## each target in tests/fuzz for FUZZ_S=300 seconds; FUZZ="NAME ..." only these
	@$(BIN)/python -m tests.fuzz --seconds "$${FUZZ_S:-300}" $(FUZZ)

# 'make bench compare' is one wish: the comparison, and no other benchmark.
ifeq ($(filter compare gateway ttft,$(MAKECMDGOALS)),)
bench: bench-deps ## measure, print a table, write bench-results/; as root
	@$(MAKE) build
	@$(BIN)/python -m bench $(BENCH_ARGS)
else
bench: $(patsubst %,bench-%,$(filter compare gateway ttft,$(MAKECMDGOALS)))
endif

compare gateway ttft: %: bench-%
	@:

bench-compare: bench-deps ## our modes beside nftables, a hash and HAProxy, with pictures; as root
	@$(MAKE) build $(FIRST_BYTE)
	@$(BIN)/python -m bench.compare $(BENCH_ARGS)

bench-gateway: bench-deps ## the L7 gateway beside nginx, HAProxy, Envoy and LiteLLM; as root
	@$(MAKE) build
	@$(BIN)/python -m bench.gateway --install $(BENCH_ARGS)

bench-ttft: bench-deps ## first tokens by what chooses the engine, our modes beside others, with pictures; as root
	@$(MAKE) build
	@$(BIN)/python -m bench.ttft --install $(BENCH_ARGS)

$(FIRST_BYTE): bench/compare/first_byte.c Makefile
	@command -v $(CLANG) >/dev/null || { \
		echo "make bench-compare: $(CLANG) was not found. Run: sudo make bench-deps" >&2; exit 1; }
	@echo "  CLANG    $@"
	@mkdir -p $(@D)
	@$(CLANG) -O2 -Wall -Wextra -Werror $< -o $@.tmp
	@mv $@.tmp $@

dist: deps build ## wheel and sdist with the compiled program, in dist/
	@$(BIN)/python tools/dist.py dist

install: deps build ## install to PREFIX=/opt/xdp-router (DESTDIR= for packagers); as root
	@tools/install

uninstall: ## remove what was installed; the configuration stays
	@tools/install --remove

clean: ## remove what was built, keep .venv
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -rf .import_linter_cache .coverage $(OBJECT) $(OBJECT6) $(LOOKUP) ebpf/*.bpf.o.tmp
	find xdp_router daemon cli ebpf tests -name __pycache__ -type d -prune -exec rm -rf {} +
