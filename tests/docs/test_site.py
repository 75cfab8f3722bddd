"""The documentation site lists every page and every public name, and builds without warnings."""

import re
import subprocess
import sys
from importlib.util import find_spec

import pytest
import yaml

import maxup
from benchmarks.tables import ROOT

DOCS = ROOT / "docs"


def pages(nav):
    for entry in nav:
        (target,) = entry.values()
        yield from pages(target) if isinstance(target, list) else [target]


def test_navigation_has_every_page_once():
    listed = list(pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert len(listed) == len(set(listed))
    assert {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} <= set(listed)


def test_reference_has_every_public_name():
    text = "".join(path.read_text() for path in (DOCS / "api").glob("*.md"))
    documented = re.findall(r"^::: (maxup[\w.]+)$", text, re.MULTILINE)
    assert set(maxup.__all__) <= {name.rpartition(".")[2] for name in documented}


@pytest.mark.skipif(find_spec("mkdocs") is None, reason="needs the extra docs")
def test_site_builds_without_warnings(tmp_path):
    # --quiet would hide the warnings from --strict
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").exists()
    pictures = [path.relative_to(ROOT) for path in (ROOT / "results").rglob("*.png")]
    assert all((tmp_path / path).exists() for path in pictures)
    assert ">>>" in (tmp_path / "api" / "objectives" / "index.html").read_text().replace("&gt;", ">")
