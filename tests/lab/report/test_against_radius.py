import json

from maxup.lab.report.against_radius import accuracy_against_radius
from maxup.lab.report.tables import grid
from maxup.lab.results.files import load_results
from maxup.lab.results.paper import load_paper
from maxup.lab.results.tables import compare
from tests.lab.report.runs import write_run

TABLE = load_paper()["table-certified"]


def certified(at_quarter, at_one):
    return {"certified_accuracy_0.25": at_quarter, "certified_accuracy_1.0": at_one}


def results(root):
    write_run(root, "certify/resnet110-gaussian", 0, 0.7, **certified(0.5, 0.3))
    write_run(root, "certify/resnet110-gaussian0.25", 0, 0.8, **certified(0.6, 0.1))
    write_run(root, "certify/resnet110-gaussian-maxup", 0, 0.6, **certified(0.4, 0.35))
    for m, accuracies in ((25, certified(0.45, 0.33)), (7, certified(0.99, 0.99))):
        recipe = {"objective": {"name": "maxup", "m": m}}
        write_run(root, "certify/resnet110-gaussian-maxup", 0, 0.6, stem=f"seed-0-m-{m}", recipe=recipe, **accuracies)
    found, notes = load_results(root, root)
    assert not notes
    return found


def test_a_row_is_the_best_of_its_grid_at_each_radius(tmp_path):
    lines = {(line.key, line.metric): line for line in compare("table-certified", TABLE, results(tmp_path)).lines}
    best = {place: line.ours[1.0].mean for place, line in lines.items() if line.ours}
    assert best == {
        ("gaussian", "0.25"): 60.0, ("gaussian", "1.0"): 30.0,
        ("gaussian-maxup", "0.25"): 45.0, ("gaussian-maxup", "1.0"): 35.0,  # m = 7 is not in the grid
    }  # fmt: skip
    assert lines["gaussian-maxup", "1.0"].differences[1.0].mean == 5.0
    note = "Our number is the best of 2 models, m in 5, 25, selected on the test images; the baseline is the best of 2."
    assert note in grid(compare("table-certified", TABLE, results(tmp_path))).notes


def test_a_radius_that_cannot_be_reached_has_no_number(tmp_path):
    """Sigma 0.25 reaches at most 0.95 with 100,000 copies, so 0 % at 1.0 would be meaningless."""
    path = write_run(tmp_path, "certify/resnet110-gaussian0.25", 0, 0.8, **certified(0.6, 0.0))
    settings = {"sigma": 0.25, "n": 100_000, "alpha": 0.001, "adaptive": False}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"certified": settings}))
    found, _ = load_results(tmp_path, tmp_path)
    lines = compare("table-certified", TABLE, found).lines
    assert [(line.key, line.metric) for line in lines if line.ours] == [("gaussian", "0.25")]


def test_it_is_drawn_only_if_we_have_results(tmp_path):
    assert accuracy_against_radius(compare("table-certified", TABLE, [])) is None
    plot = accuracy_against_radius(compare("table-certified", TABLE, results(tmp_path)))
    assert plot.description == "Gaussian augmentation: 60.0 at 0.25, 30.0 at 1; MaxUp+Gauss: 45.0 at 0.25, 35.0 at 1"
    assert plot.png.startswith(b"\x89PNG")
