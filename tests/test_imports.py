"""Imports go one way: core, then the lab's packages from left to right, then the command."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAB = [
    "models",
    "data",
    "recipes",
    "tasks",
    "train",
    "certify",
    "robustness",
    "results",
    "experiments",
    "report",
    "bench",
]  # left to right
LEAVES = {"storage"}  # packages of the lab that import the core and the lab's own modules only
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (ROOT / "maxup").rglob("*.py")
}


def imports(name):
    """The modules of the package that a module imports, at the top or inside a function, but not for types alone."""
    tree = ast.parse(FILES[name].read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in FILES else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


GRAPH = {name: {one for one in imports(name) if one in FILES and one != name} for name in FILES}


def package(name):
    """maxup.objectives.base -> objectives; maxup.lab.data.cifar -> lab.data; maxup.rng -> rng."""
    parts = name.split(".")[1:]
    return ".".join(parts[:2]) if parts[:1] == ["lab"] else (parts or [""])[0]


def edges():
    return sorted({(package(a), package(b)) for a, found in GRAPH.items() for b in found} - {("", "")})


def test_the_graph_is_read():
    assert ("objectives", "perturb") in edges()
    assert len(GRAPH) > 100


def test_the_core_imports_nothing_from_the_lab():
    wrong = [
        (name, one)
        for name, found in GRAPH.items()
        for one in found
        if not name.startswith(("maxup.lab", "maxup.cli")) and one.startswith(("maxup.lab", "maxup.cli"))
    ]
    assert wrong == [("maxup.__main__", "maxup.cli.main")]


def test_the_lab_does_not_import_the_command():
    assert [(a, b) for a, b in edges() if a.startswith("lab") and b == "cli"] == []


@pytest.mark.parametrize("name", LAB)
def test_a_package_of_the_lab_imports_none_to_its_right(name):
    right = {f"lab.{one}" for one in LAB[LAB.index(name) + 1 :]}
    assert [b for a, b in edges() if a == f"lab.{name}" and b in right] == []


def test_leaves_import_no_package_of_the_lab():
    modules = {package(name) for name in FILES if name.startswith("maxup.lab.")} - {f"lab.{one}" for one in LAB}
    wrong = [(a, b) for a, b in edges() if a in modules and b.removeprefix("lab.") in LAB]
    assert wrong == []
    assert {f"lab.{one}" for one in LEAVES} <= modules


def test_no_cycle_between_packages():
    after = {}
    for a, b in edges():
        if a != b:
            after.setdefault(a, set()).add(b)

    def reach(start):
        seen, waiting = set(), [start]
        while waiting:
            for one in after.get(waiting.pop(), ()):
                if one not in seen:
                    seen.add(one)
                    waiting.append(one)
        return seen

    assert [name for name in after if name in reach(name)] == []


def test_no_module_imports_a_private_name_of_another():
    wrong = [
        f"{name}: {alias.name}"
        for name, path in FILES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("maxup")
        for alias in node.names
        if alias.name.startswith("_")
    ]
    assert wrong == []


def test_exceptions_are_one_family_in_one_file():
    wrong = [
        f"{name}: {node.name}"
        for name, path in FILES.items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
        and name != "maxup.errors"
        and any(ast.unparse(base).endswith(("Error", "Exception", "Warning")) for base in node.bases)
    ]
    assert wrong == []
