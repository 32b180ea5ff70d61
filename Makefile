# Everything runs in .venv, which is made from requirements.lock. A new machine needs Python 3.11 or newer, and for
# `make test` also Java, Maven, Prometheus and Chromium, which are fetched by apt-get where that is possible.

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
INSTALLED := $(VENV)/.installed

.PHONY: help setup demo test lint format bench experiments screenshots wheel lock clean java prometheus browser

help:  ## Say what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /: /' | sort

setup: $(INSTALLED)  ## Make .venv and install everything into it

$(INSTALLED): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed (python3 or python3.11 … in PATH)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: setup  ## Run the whole thing on this machine; make demo ARGS="--seconds 20"
	$(BIN)/streampca demo $(ARGS)

test: setup java prometheus browser  ## Run every test, those on the real Kafka broker included; make test ARGS="-k fold"
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder $(ARGS)

lint: setup  ## Check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## Bring the format in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup java  ## Measure everything anew and show it in docs/performance.md (an hour); make bench ARGS="speed"
	$(BIN)/python -m pip install --quiet 'proSVD>=0.0.1,<0.1'
	$(BIN)/python -m benchmarks.all $(ARGS)

experiments: setup  ## Run the paper's experiments and write docs/experiments.md; make experiments ARGS="--runs 3"
	$(BIN)/python -m experiments.all $(ARGS)

screenshots: setup browser  ## Take the README's pictures of the sidecar's page anew; needs data, see benchmarks/
	$(BIN)/python -m tests.page.screenshots

wheel: setup  ## Build the wheel into dist/
	$(BIN)/python -m build --wheel --no-isolation --outdir dist .

lock: setup  ## Pin the newest versions that pyproject.toml allows
	$(BIN)/pip-compile --quiet --upgrade --all-extras --strip-extras --allow-unsafe --no-header \
		--no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options \
		--output-file requirements.lock pyproject.toml

java:
	@{ command -v java && command -v mvn; } >/dev/null || { \
		echo "installing Java and Maven for the Kafka broker" >&2; \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
				apt-get install -y -qq --no-install-recommends default-jre-headless maven >/dev/null; \
		else echo "please install Java 17 or newer and Maven" >&2; exit 1; fi; }

# libatomic1 is for Playwright's driver, which drives the browser.
browser: setup
	@{ { command -v chromium || command -v chromium-browser || command -v google-chrome; } && \
		$(BIN)/python -m playwright --version; } >/dev/null 2>&1 || { \
		echo "installing Chromium for the tests of the sidecar's page" >&2; \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
				apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core libatomic1 >/dev/null; \
		else echo "no Chromium: the tests of the page are skipped" >&2; fi; }

# Unpacked rather than installed, because Debian would start it as a service. Without it tests are skipped, in CI they fail.
PROMETHEUS := $(HOME)/.cache/streampca-prometheus
prometheus:
	@{ { command -v prometheus && command -v promtool; } || test -x $(PROMETHEUS)/usr/bin/prometheus; } >/dev/null || { \
		echo "fetching Prometheus for the tests of its rules" >&2; \
		{ [ "$$(id -u)" != 0 ] || apt-get update -qq; } && mkdir -p $(PROMETHEUS)/fetched && cd $(PROMETHEUS)/fetched && \
			apt-get download -qq -o APT::Sandbox::User=root prometheus && dpkg -x prometheus_*.deb .. && rm -r ../fetched; } || \
		echo "no Prometheus: neither installed nor to be had by apt-get" >&2

clean:  ## Remove what was made
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
