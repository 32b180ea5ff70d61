# Everything runs in .venv, made from the locks. A new machine needs Python 3.11 to 3.13; `make test` also needs
# Java, Maven, Prometheus, Chromium, wrk and hey, which it installs with apt-get where it can.

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null && echo $$p && break; done)
DEMO_INSTALLED := $(VENV)/.installed-demo
INSTALLED := $(VENV)/.installed
QUIX := $(VENV)/quix
ACTIONLINT := $(HOME)/.cache/streampca-actionlint/actionlint-1.7.12
# uv takes a third of pip's time. Where it is missing, pip fetches the locked one, or else installs everything itself.
UV := $(or $(shell command -v uv),$(BIN)/uv)
PIP := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check
install = $(UV) --version >/dev/null 2>&1 || { \
		sed -n '/^uv==/,/^ *\# via/p' requirements.lock >$(VENV)/uv.lock && $(PIP) -r $(VENV)/uv.lock; }; \
	$(UV) pip install --quiet --python $(BIN)/python $(1) || $(PIP) $(1)

.PHONY: help setup demo test test-fast test-processors simulate lint schema dashboard format bench experiments screenshots site wheel dist chart release-check lock \
	clean image-test workflow-test helm-test k8s-test java prometheus browser load-generators npm quix image-tools kubernetes helm go

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /: /' | sort

setup: $(INSTALLED)  ## Make .venv and install everything into it

$(DEMO_INSTALLED): demo.lock
	@test -n "$(PYTHON)" || { echo "Python 3.11 to 3.13 is needed (python3 or python3.11 … in PATH)" >&2; exit 1; }
	@echo "installing what the demo needs into $(VENV), 500 MB"
	@$(PYTHON) -m venv $(VENV)
	@$(call install,-r demo.lock)
	@touch $@

$(INSTALLED): requirements.lock pyproject.toml $(DEMO_INSTALLED)
	@echo "installing everything else into $(VENV), 2 GB more"
	@$(call install,-r requirements.lock)
	@$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

demo: $(DEMO_INSTALLED)  ## Run broker, producer, workers and sidecar on this machine; make demo ARGS="--seconds 20"
	$(BIN)/python -m streampca demo $(ARGS)

# Bytecode is always written: the tests start a hundred processes.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder --numprocesses

test: setup java prometheus browser load-generators npm quix  ## Run every test, those on a real Kafka broker included (8 to 19 min); make test ARGS="-k fold"
	$(PYTEST) 4 $(ARGS)

test-fast: setup  ## Run the tests that need no broker and no browser and are quick (1 min)
	$(PYTEST) 3 -m "not broker and not browser and not slow" --hypothesis-profile fast $(ARGS)

# OpenBLAS and numba compute other bits on other processors; generic: the code of both for any x86-64.
PROCESSORS := Haswell $(if $(shell grep -sm1 avx512bw /proc/cpuinfo),SkylakeX) Zen Sandybridge generic
test-processors: setup  ## Run the quick tests as on other processors; make test-processors PROCESSORS=generic ARGS=tests/pca
	@for processor in $(PROCESSORS); do echo "as on $$processor"; \
		variables=$$(echo OPENBLAS_CORETYPE=$$processor | sed 's/=generic/=Prescott NUMBA_CPU_NAME=generic/'); \
		env $$variables $(PYTEST) 3 -m "not broker and not browser and not slow" --hypothesis-profile fast $(ARGS) || exit; done

image-test: setup java image-tools  ## Build the image and run it against a real Kafka broker, as root (20 min)
	$(BIN)/python -m pytest -s tests/deploy/image.py $(ARGS)

simulate: setup  ## Run the simulation on many seeds; make simulate SEEDS=100000 FROM=1 ROLE=worker
	$(BIN)/python -m tests.simulation.run --seeds $(or $(SEEDS),10000) --from $(or $(FROM),1) --role $(or $(ROLE),worker)

workflow-test: setup $(ACTIONLINT)  ## Check the workflows with actionlint, which is built first, and zizmor (1 min)
	$(ACTIONLINT)
	$(BIN)/zizmor --quiet --offline .

helm-test: setup helm  ## Render the Helm chart and check what it makes; builds Helm first (3 min)
	STREAMPCA_HELM=$(HELM) $(BIN)/python -m pytest tests/deploy/helm.py tests/deploy/helm_options.py tests/deploy/helm_clusters.py $(ARGS)

k8s-test: setup helm kubernetes  ## Apply the Helm chart to a Kubernetes API server, which is built first (10 min)
	STREAMPCA_KUBERNETES=$(KUBERNETES) STREAMPCA_HELM=$(HELM) $(BIN)/python -m pytest tests/deploy/kubernetes.py $(ARGS)

lint: setup  ## Check style, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

schema: setup  ## Write the settings' types and bounds into the schema of the chart's values
	$(BIN)/python helm/schema.py

dashboard: setup  ## Write the chart's Grafana dashboard
	$(BIN)/python helm/dashboard.py

format: setup  ## Fix style and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup java load-generators  ## Run the benchmarks and write docs/performance.md (an hour); make bench ARGS="speed start"
	$(BIN)/python -m benchmarks.all $(ARGS)

experiments: setup  ## Run the paper's experiments and write experiments/README.md; make experiments ARGS="--runs 3"
	$(BIN)/python -m experiments.all $(ARGS)

screenshots: setup browser java  ## Take the pictures of the sidecar's page; needs the benchmarks' data
	$(BIN)/python -m tests.page.screenshots

site: setup npm  ## Build the documentation's site into build/site; a warning is an error
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs build/site

wheel: setup  ## Build the wheel into dist/
	$(BIN)/python -m build --wheel --no-isolation --outdir dist .

dist: setup  ## Build the wheel and the source distribution into dist/
	$(BIN)/python -m build --no-isolation --outdir dist .

chart: helm  ## Package the Helm chart into dist/
	$(HELM) package helm/streampca --destination dist

release-check:  ## Check that a tag can be released; make release-check TAG=v0.1.0
	@grep -qx '__version__ = "$(TAG:v%=%)"' streampca/version.py || { echo "streampca/version.py has another version than $(TAG)" >&2; exit 1; }
	@grep -Eq '^## $(TAG:v%=%) \([0-9]{4}-[0-9]{2}-[0-9]{2}\)$$' CHANGELOG.md || { echo "CHANGELOG.md has no date for $(TAG)" >&2; exit 1; }

lock: setup  ## Pin the newest versions that pyproject.toml allows
	$(BIN)/python -m tests.locks --upgrade

java:
	@{ command -v java && command -v mvn; } >/dev/null || { \
		echo "installing Java and Maven for the Kafka broker" >&2; \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
				apt-get install -y -qq --no-install-recommends default-jre-headless maven >/dev/null; \
		else echo "please install Java 17 or newer and Maven" >&2; exit 1; fi; }

quix: $(QUIX)/.installed

# A tutorial's stream processor: its dependencies exclude newer ones of ours, so it has an environment of its own.
$(QUIX)/.installed: tests/quix.lock $(INSTALLED)
	@$(BIN)/python -m venv --clear $(QUIX)
	@$(UV) pip install --quiet --python $(QUIX)/bin/python -r tests/quix.lock || $(QUIX)/bin/pip install --quiet -r tests/quix.lock
	@touch $@

npm:
	@command -v npm >/dev/null || { \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then echo "installing npm for the site" >&2; \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
				apt-get install -y -qq --no-install-recommends npm >/dev/null; \
		else echo "npm is missing; without it the site cannot be built, and its test is skipped" >&2; fi; }

# libatomic1 is for Playwright's driver, which drives the browser.
browser: setup
	@{ { command -v chromium || command -v chromium-browser || command -v google-chrome; } && \
		$(BIN)/python -m playwright --version; } >/dev/null 2>&1 || { \
		echo "installing Chromium for the tests of the sidecar's page" >&2; \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
				apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core libatomic1 >/dev/null; \
		else echo "no Chromium: the tests of the page are skipped" >&2; fi; }

# For the benchmark of serving, which the tests also run.
load-generators:
	@{ command -v wrk && command -v hey; } >/dev/null || { \
		echo "installing wrk and hey for the benchmark of serving" >&2; \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
				apt-get install -y -qq --no-install-recommends wrk hey >/dev/null; \
		else echo "no wrk and hey: the test of that benchmark is skipped" >&2; fi; }

# Unpacked instead of installed, because Debian would start it as a service. Without it tests are skipped; in CI they fail.
PROMETHEUS := $(HOME)/.cache/streampca-prometheus
prometheus:
	@{ { command -v prometheus && command -v promtool; } || test -x $(PROMETHEUS)/usr/bin/prometheus; } >/dev/null || { \
		echo "fetching Prometheus for the tests of its rules" >&2; \
		{ [ "$$(id -u)" != 0 ] || apt-get update -qq; } && mkdir -p $(PROMETHEUS)/fetched && cd $(PROMETHEUS)/fetched && \
			apt-get download -qq -o APT::Sandbox::User=root prometheus && dpkg -x prometheus_*.deb .. && rm -r ../fetched; } || \
		echo "no Prometheus: neither installed nor available from apt-get" >&2

image-tools:
	@{ command -v buildah && command -v debootstrap && command -v runc; } >/dev/null || { \
		echo "installing buildah, debootstrap and runc for the test of the image" >&2; \
		if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
			apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
				apt-get install -y -qq --no-install-recommends buildah debootstrap runc >/dev/null; \
		else echo "please install buildah, debootstrap and runc" >&2; exit 1; fi; }

$(ACTIONLINT): | go
	GOBIN=$(@D) go install github.com/rhysd/actionlint/cmd/actionlint@v$(@F:actionlint-%=%)
	mv $(@D)/actionlint $@

HELM := $(HOME)/.cache/streampca-helm/helm-v3.19.5
helm: $(HELM)

$(HELM): | go
	GOBIN=$(@D) go install helm.sh/helm/v3/cmd/helm@$(@F:helm-%=%)
	mv $(@D)/helm $@

# etcd is unpacked instead of installed, because Debian would start it as a service. Kubernetes cannot be installed as a Go
# module: its own requirements lie in folders of its repository. The published modules of the same version replace them.
KUBERNETES := $(HOME)/.cache/streampca-kubernetes
KUBERNETES_VERSION := 34.4
kubernetes: $(KUBERNETES)/etcd $(KUBERNETES)/kube-apiserver

$(KUBERNETES)/etcd:
	{ [ "$$(id -u)" != 0 ] || apt-get update -qq; } && mkdir -p $(KUBERNETES)/fetched && cd $(KUBERNETES)/fetched && \
		apt-get download -qq -o APT::Sandbox::User=root etcd-server && dpkg -x etcd-server_*.deb . && \
		mv usr/bin/etcd .. && cd .. && rm -r fetched

$(KUBERNETES)/kube-apiserver: | go
	mkdir -p $(KUBERNETES)/module && cd $(KUBERNETES)/module && \
		source=$$(go mod download -json k8s.io/kubernetes@v1.$(KUBERNETES_VERSION) | sed -n 's/^\t"Dir": "\(.*\)",$$/\1/p') && \
		sed -E 's,^module .*,module streampca.test/cluster,; s,=> ./staging/src/(.*),=> \1 v0.$(KUBERNETES_VERSION),' \
			$$source/go.mod >go.mod && cp $$source/go.sum go.sum && chmod u+w go.sum && \
		go mod edit -require k8s.io/kubernetes@v1.$(KUBERNETES_VERSION) && \
		go build -mod=mod -o $@ -ldflags "-X k8s.io/component-base/version.gitVersion=v1.$(KUBERNETES_VERSION)" \
			k8s.io/kubernetes/cmd/kube-apiserver && rm -r $(KUBERNETES)/module

go:
	@command -v go >/dev/null || { echo "please install Go 1.24 or newer" >&2; exit 1; }

clean:  ## Remove everything that make and the tools have written
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
