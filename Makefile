# `make demo` and `make test` each set up everything on a machine that has Python 3.11 and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
DATA := $(or $(MEDAPPS_DATA),$(wildcard ../shared/data))
READY := $(VENV)/.ready

.PHONY: demo test faults ui-test lint bench scorers setup clean

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt pip hatchling editables
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation -e ".[dev,ann,export,text]"
	touch $@

demo: $(READY)
	$(BIN)/medapps demo

test: $(READY)
	MEDAPPS_DATA=$(abspath $(DATA)) $(BIN)/python -m pytest -n 2 --dist loadfile

# kills, signals, full disks, two writers, bad inputs and flipped bytes: ten minutes
faults: $(READY)
	$(BIN)/python -m tests.faults --kills 100 --signals 100 --disk 60 --inputs 1000 --flips 200 --seconds 600

# a browser on the MLflow UI; installs Debian's chromium and, in a temporary folder, playwright-core
ui-test: $(READY)
	command -v chromium > /dev/null || apt-get install -y --no-install-recommends chromium
	folder=$$(mktemp -d) && npm install --silent --no-audit --no-fund --prefix $$folder playwright-core@1 \
	  && MEDAPPS_PLAYWRIGHT=$$folder $(BIN)/python -m pytest tests/ui; \
	  code=$$?; rm -rf $$folder; exit $$code

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	for name in graph train rank crop ncf distributed; do \
	  MEDAPPS_DATA=$(abspath $(DATA)) $(BIN)/python benchmarks/$$name.py || exit 1; done

# the link-prediction study: every scorer and method, a study per core; hours; less with QUICK=--quick
SCORERS := baselines_fb15k237 $(foreach name,simple pairre rotate,$(name)_wn18rr $(name)_fb15k237)
scorers: $(READY)
	printf '%s\n' $(SCORERS) | MEDAPPS_DATA=$(abspath $(DATA)) OMP_NUM_THREADS=1 xargs -P $$(nproc) \
	  -I NAME $(BIN)/medapps run configs/NAME.yaml --set train.threads=1 $(QUICK)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
