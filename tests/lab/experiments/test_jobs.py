"""The jobs of a table, and which results count as done."""

import json
from dataclasses import asdict

import pytest

from maxup.lab.experiments.jobs import Job, describe, keep, make_jobs, state
from maxup.lab.report.custom_tables import make_table
from maxup.lab.results.paper import load_paper
from tests.lab.report.runs import write_run

BASELINE, MAXUP = "digits/mlp-gaussian", "digits/mlp-gaussian-maxup"


def finished(job, folder):
    folder.mkdir(parents=True)
    recipe = asdict(job.resolved())
    run = {"recipe": recipe, "seed": job.seed, "last": {}, "seconds": 1.0, "environment": {}}
    (folder / "run.json").write_text(json.dumps(run))


def test_a_table_makes_a_job_for_each_recipe_m_and_seed():
    table = make_table([(BASELINE, None), (MAXUP, None), (MAXUP, 4), (MAXUP, 10)], "")
    jobs, missing = make_jobs(table, 2)
    assert not missing
    assert [(job.name, job.m) for job in jobs[:3]] == [
        (f"{BASELINE}/seed-0", None), (f"{MAXUP}/seed-0", None), (f"{MAXUP}/seed-0-m-10", 10),
    ]  # fmt: skip
    assert [job.seed for job in jobs] == [0, 0, 0, 1, 1, 1]
    assert jobs[2].arguments == [MAXUP, "--seed", "0", "--epochs", "60", "--objective.m", "10"]
    assert jobs[2].resolved().objective["m"] == 10


@pytest.mark.parametrize(("budget", "epochs"), [(1.0, 60), (0.3, 18), (0.001, 1), (0.999, 60)])
def test_a_budget_scales_the_epochs(budget, epochs):
    (job,), _ = make_jobs(make_table([(BASELINE, None)], ""), 1, budget)
    assert job.epochs == epochs
    assert ("budget" in job.name) == (epochs < 60)


def test_a_recipe_in_a_file_has_the_name_that_training_gives_it():
    assert Job("sub/mine.yaml", 0, 1).name == "sub-mine/seed-0"


def test_restarts_add_epochs():
    jobs, _ = make_jobs(load_paper()["table-ptb"], 1, 0.1)
    assert describe(jobs, ["to do"] * len(jobs), [])[0].endswith("  50 epochs, up to 150 with restarts  to do")
    jobs, _ = make_jobs(make_table([(BASELINE, None)], ""), 1)
    assert describe(jobs, ["to do"], [])[0].endswith("  60 epochs  to do")


def test_jobs_of_the_ablation_have_their_m_and_m_1_is_the_baseline(tmp_path, monkeypatch):
    """With stand-ins for the recipes, which have the m of Tables 3 and 4."""
    from maxup.lab.recipes import load

    table = load_paper()["table-ablation"]
    for recipe in {row.recipe for row in table.rows.values()}:
        path = tmp_path / f"{recipe}.yaml"
        path.parent.mkdir(exist_ok=True)
        own = 10 if "wrn" in recipe else 4
        path.write_text(f"objective: {{name: maxup, m: {own}}}\nepochs: 200" if "maxup" in recipe else "epochs: 200")
    monkeypatch.setattr(load, "FOLDER", tmp_path)
    jobs, missing = make_jobs(table, 1, 0.3)
    assert not missing
    assert len(jobs) == len({job.name for job in jobs}) == 16
    for (key, row), job in zip(table.rows.items(), jobs, strict=True):
        recipe = job.resolved()
        assert recipe.objective.get("m", 1) == row.m, key
        assert recipe.epochs == 60
        own = {1: True, 4: "resnet" in key, 10: "wrn" in key, 20: False}[row.m]
        assert job.name == f"{row.recipe}/seed-0" + ("" if own else f"-m-{row.m}") + "-budget-0.3"


def test_missing_recipes_are_named():
    for name, table in load_paper().items():
        jobs, missing = make_jobs(table, 1)
        wanted = {name for row in table.rows.values() if row.recipe for name in (row.recipe, *row.grid)}
        assert {job.recipe for job in jobs} | set(missing) == wanted, name


def test_a_finished_run_becomes_a_result_once(tmp_path):
    job = Job(MAXUP, 0, 60)
    run, results = tmp_path / "run", tmp_path / "results"
    assert state(job, results) == "to do"
    assert not keep(job, run, results)
    finished(job, run)
    assert keep(job, run, results)
    assert state(job, results) == "done"
    path = results / MAXUP / "seed-0.json"
    assert path.read_bytes() == (run / "run.json").read_bytes()
    assert [p.name for p in path.parent.iterdir()] == ["seed-0.json"]
    before = path.stat().st_mtime_ns
    assert keep(job, run, results)
    assert path.stat().st_mtime_ns == before


def test_a_run_of_another_job_is_not_kept(tmp_path):
    finished(Job(MAXUP, 1, 60), tmp_path / "run")
    for job in (Job(MAXUP, 0, 60), Job(MAXUP, 1, 30, 0.5), Job(MAXUP, 1, 60, m=8), Job(BASELINE, 1, 60)):
        assert not keep(job, tmp_path / "run", tmp_path / "results")
    (tmp_path / "run" / "run.json").write_text("{")
    assert not keep(Job(MAXUP, 1, 60), tmp_path / "run", tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_a_result_of_another_recipe_is_neither_done_nor_overwritten(tmp_path):
    path = write_run(tmp_path, BASELINE, 0, 0.9, known=True, recipe={"batch_size": 7})
    assert "batch_size" in state(Job(BASELINE, 0, 60), tmp_path)
    path.write_text("{")
    assert "remove it" in state(Job(BASELINE, 0, 60), tmp_path)
    assert not keep(Job(BASELINE, 0, 60), tmp_path, tmp_path)


def test_a_grid_has_all_recipes_with_every_m_and_is_certified():
    jobs, missing = make_jobs(load_paper()["table-certified"], 1)
    assert not missing
    assert len({job.name for job in jobs}) == len(jobs) == 4 + 4 + 20
    assert all(job.arguments[-1] == "--certify" for job in jobs)
    assert not any(job.certifies for job in make_jobs(load_paper()["table-cifar10"], 1)[0])


def test_a_run_without_certificates_is_not_done(tmp_path):
    job = Job("smoke/digits-gaussian", 0, 60)
    path = write_run(tmp_path / "runs", "smoke/digits-gaussian", 0, 0.9, curve="")
    assert not keep(job, path.parent, tmp_path / "results")
    run = json.loads(path.read_text())
    path.write_text(json.dumps(run | {"certified": {}}))
    assert keep(job, path.parent, tmp_path / "results")
