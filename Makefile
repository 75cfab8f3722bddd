# Every target sets up .venv by itself. A fresh clone needs only Python 3.11 or newer and make.
PYTHON ?= python3
PIP = .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test torture lint bench docs clean

demo: .venv/ok  ## train on digits with and without MaxUp, at equal epochs and equal time; prints a table, writes out/compare.png
	.venv/bin/python -m maxup compare digits/mlp-gaussian-maxup --seeds 8 --out out

test: .venv/dev.ok  ## run all tests except those marked slow
	.venv/bin/python -m pytest -q -n 2

torture: .venv/dev.ok  ## kill, fail and corrupt for ten minutes; updates results/torture.json and docs/reliability.md
	.venv/bin/python -m tests.torture; status=$$?; .venv/bin/python -m benchmarks.tables; exit $$status

lint: .venv/dev.ok  ## run ruff and mypy
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

bench: .venv/ok  ## measure memory and overhead as a function of m
	.venv/bin/python -m benchmarks.memory
	.venv/bin/python -m benchmarks.overhead

docs: .venv/dev.ok  ## build the documentation site in site/
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict

clean:
	rm -rf .venv out site

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/ok: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e ".[lab]"
	touch $@

.venv/dev.ok: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e ".[dev]"
	touch $@ .venv/ok
