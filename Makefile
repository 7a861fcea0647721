# Everything runs in .venv, made on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test test-deployment test-chaos test-cluster install format clean curve paper bench bench-sweep bench-valuation bench-deploy bench-report cluster cluster-down notebook screenshots
.DEFAULT_GOAL := demo

demo: $(INSTALLED)
	$(BIN)/greedyfed run --ray --config experiments/demo.toml --output-dir runs/demo-$$(date +%Y%m%d-%H%M%S)

test: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest

# A federation of real processes, any of which is killed: minutes.
test-deployment: $(INSTALLED)
	$(BIN)/pytest -m deployment

# Fifty rounds of a federation of real processes in which something is killed all the time.
test-chaos: $(INSTALLED)
	$(BIN)/pytest -m chaos -s

# The cluster in containers, a run on it, and what it refuses: minutes; needs Docker and Compose.
test-cluster: $(INSTALLED)
	$(BIN)/pytest -m cluster --durations=0 $(PYTEST)

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "greedyfed needs Python 3.11 or newer; call make PYTHON=python3.11")'
	@echo "Installing into $(VENV): PyTorch and more, several GB; this takes some minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache

# docs/notebook.ipynb, executed: it trains for some seconds, and keeps what it shows.
notebook: $(INSTALLED)
	$(BIN)/python -m tests.test_notebook

# docs/screenshots: the report of a demo run in Chromium, which must be installed.
screenshots: $(INSTALLED)
	$(BIN)/python -m tests.screenshots

# The paper's MNIST curve, GreedyFed and FedAvg over five seeds: make curve DATA=folder-with-MNIST
SEEDS ?= 0 1 2 3 4
JOBS ?= 2
curve: $(INSTALLED)
	@test -n "$(DATA)" || { echo "call make curve DATA=folder (with MNIST/raw; see README, MNIST)"; exit 2; }
	for algorithm in greedyfed fedavg; do for seed in $(SEEDS); do echo $$algorithm $$seed; done; done | \
	xargs -P $(JOBS) -L 1 sh -c '$(BIN)/greedyfed run --resume --config experiments/mnist.toml --data-dir "$(DATA)" \
		--output-dir runs/mnist -c algorithm=$$0 -c seed=$$1 | tail -1'
	$(BIN)/python -m experiments.plots runs/mnist -o docs/accuracy.png --at 150 --at 250 --at 350 --at 400

# The paper's tables: run what is missing, then write docs/results.md: make paper DATA=folder
paper: $(INSTALLED)
	@test -n "$(DATA)" || { echo "call make paper DATA=folder (with MNIST/raw, FashionMNIST/raw)"; exit 2; }
	for set in mnist fmnist; do \
		$(BIN)/greedyfed paper --dataset $$set --seeds 3 --data-dir "$(DATA)" --jobs $(JOBS) && \
		$(BIN)/greedyfed paper --dataset $$set --seeds 3 --out docs/results.md || exit; \
	done

# Ratios within one run on one core: make bench DATA=folder-with-MNIST
bench: $(INSTALLED)
	@test -n "$(DATA)" || { echo "call make bench DATA=folder (with MNIST/raw; see README, MNIST)"; exit 2; }
	$(BIN)/python -m benchmarks.round --data-dir "$(DATA)" --check

# The same for each algorithm and for two jobs: 17 minutes.
bench-sweep: $(INSTALLED)
	@test -n "$(DATA)" || { echo "call make bench-sweep DATA=folder (with MNIST/raw)"; exit 2; }
	$(BIN)/python -m benchmarks.sweep --data-dir "$(DATA)" --check

# Evaluations of coalitions and estimators of Shapley values; docs/performance.md has the figures.
bench-valuation: $(INSTALLED)
	@test -n "$(DATA)" || { echo "call make bench-valuation DATA=folder (MNIST/raw, CIFAR-10)"; exit 2; }
	$(BIN)/python -m benchmarks.valuation --data-dir "$(DATA)" --check

# How long the report of 300 clients and 400 rounds takes to open in Chromium: a minute.
bench-report: $(INSTALLED)
	$(BIN)/python -m benchmarks.report --check

# Seconds of a deployed round by phase, beside Flower's own: 7 minutes.
bench-deploy: $(INSTALLED)
	$(BIN)/python -m benchmarks.deploy --check

# A federation in containers on this machine; see docker-compose.yml. Needs Docker and Compose.
cluster: $(INSTALLED)
	$(BIN)/python -m experiments.cluster run

cluster-down: $(INSTALLED)
	$(BIN)/python -m experiments.cluster down
