# Each target sets up .venv by itself: a bare clone needs Python 3.11 or newer, and make.
PYTHON ?= python3
PIP = .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test torture lint bench clean

demo: .venv/ok  ## with and without MaxUp on digits, at equal epochs and equal time: a table and out/compare.png
	.venv/bin/python -m maxup compare digits/mlp-gaussian-maxup --seeds 8 --out out

test: .venv/dev.ok  ## everything but the tests marked slow
	.venv/bin/python -m pytest -q -n 2

torture: .venv/dev.ok  ## kills, I/O errors and mutated files for ten minutes; results/torture.json and docs/reliability.md
	.venv/bin/python -m tests.torture; status=$$?; .venv/bin/python -m benchmarks.tables; exit $$status

lint: .venv/dev.ok  ## ruff and mypy
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

bench: .venv/ok  ## memory and overhead against m
	.venv/bin/python -m benchmarks.memory
	.venv/bin/python -m benchmarks.overhead

clean:
	rm -rf .venv out

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/ok: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e .
	touch $@

.venv/dev.ok: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e ".[dev]"
	touch $@ .venv/ok
