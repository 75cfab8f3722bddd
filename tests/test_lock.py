"""CI installs the versions in constraints.txt by hash, and these meet the bounds in pyproject.toml."""

import re
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent


def pinned(path, pattern):
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    found = [re.fullmatch(pattern, line) for line in lines]
    assert all(found), [line for line, match in zip(lines, found, strict=True) if not match]
    return {canonicalize_name(match[1]): Version(match[2]) for match in found}


def constraints():
    return pinned(ROOT / "constraints.txt", r"([\w.-]+)==([\w.]+)")


def test_every_version_has_a_hash_and_no_address():
    locked = pinned(ROOT / ".ci" / "requirements.txt", r"([\w.-]+)==([\w.+]+) --hash=sha256:[0-9a-f]{64}")
    assert {name: version.public for name, version in locked.items()} == {
        name: version.public for name, version in constraints().items()
    }, "run: .venv/bin/python .ci/lock"
    assert locked["torch"].local == "cpu"


def test_constraints_meet_the_lower_bounds():
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())
    required = about["build-system"]["requires"] + about["project"]["dependencies"]
    for extra in ("lab", "lightning", "transformers", "timm", "imagenet", "docs", "dev"):
        required += about["project"]["optional-dependencies"][extra]
    versions = constraints()
    for requirement in map(Requirement, required):
        if requirement.name != "maxup":
            assert versions[canonicalize_name(requirement.name)] in requirement.specifier, requirement
    assert [str(Requirement(text).specifier)[:2] for text in about["build-system"]["requires"]] == ["=="]
    bounded = [text for text in required if text.startswith(("pillow", "safetensors", "PyYAML"))]
    assert len(bounded) == 3
    assert all(Requirement(text).specifier for text in bounded)


def test_core_needs_torch_and_numpy_only():
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {Requirement(text).name for text in about["project"]["dependencies"]} == {"torch", "numpy"}


def test_workflow_tests_the_pinned_and_the_oldest_torch():
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (oldest,) = [str(r.specifier) for r in map(Requirement, about["project"]["dependencies"]) if r.name == "torch"]
    matrix = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["test"]["strategy"]["matrix"]
    for name in ("torch", "torchvision"):
        assert matrix[name] == [str(constraints()[name])]
    (extra,) = matrix["include"]
    assert f">={extra['torch']}" == f"{oldest}.0"
    supported = [text.rpartition(" ")[2] for text in about["project"]["classifiers"] if "Python :: 3." in text]
    assert matrix["python"] == supported
    assert about["project"]["requires-python"] == f">={supported[0]}"
