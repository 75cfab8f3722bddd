"""`maxup certify`: a run, an export, a user's network; killed and resumed; by two processes; what it refuses."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from maxup.cli.main import main
from maxup.lab.certify.run import TOGETHER
from maxup.lab.certify.tsv import read
from maxup.lab.recipes.load import parse_recipe
from maxup.lab.storage.locks import locked
from maxup.lab.train.loop import train
from tests.waiting import PATIENCE, maxup_after

ROOT = Path(__file__).parent.parent.parent
QUICK = ["--n", "500", "--batch", "500"]
KILLED = """
import os, signal
from maxup.lab.certify import tsv
from tests.waiting import at_call
at_call(tsv, "append", 4, lambda: os.kill(os.getpid(), signal.SIGKILL))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    train(parse_recipe("smoke/digits-gaussian-maxup", ["--epochs", "8"]), folder, quiet=True)
    return folder


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def certify(*arguments):
    return main(["certify", *map(str, arguments)])


def lines(path):
    """Without the time, which is what may differ."""
    return [line.split("\t")[:5] for line in path.read_text().splitlines()[1:]]


def test_a_run_is_certified_with_its_training_noise_and_recorded(run, capsys):
    assert certify(run, *QUICK, "--plot", run / "plot.png") == 0
    about, rows = read(run / "certified-0.5.tsv")
    assert (about["sigma"], about["dtype"], about["n"], about["alpha"]) == (0.5, "float32", 500, 0.001)
    assert [row.idx for row in rows] == list(range(0, 1297, 20))
    assert sum(row.correct for row in rows) > 30
    printed = capsys.readouterr().out
    assert "65/65 images" in printed
    assert f"Certificates: {run / 'certified-0.5.tsv'}\n" in printed
    last = json.loads((run / "run.json").read_text())["last"]
    share = sum(row.correct and row.radius >= 0.25 for row in rows) / 65
    assert last["certified_accuracy_0.25"] == pytest.approx(share)
    assert f"{100 * share:.1f} ±" in printed
    assert (run / "plot.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (["--checkpoint", "best", "--out", "b.tsv"], "the last checkpoint, no --out."),
        (["--out", "b.tsv"], "no --out."),
        (["--sigma", "0.25"], "the sigma of training."),
        (["--alpha", "0.1", "--out", "b.tsv"], "no --out, alpha 0.001 or less."),
        (["--radii", "0.25", "--out", "b.tsv"], "no --out, all radii from 0.25 to 2.75."),
        (["--skip", "100"], "every 20th image (without --max) or --all."),
        (["--max", "3"], "every 20th image (without --max) or --all."),
    ],
)
def test_certificates_a_report_may_not_show_leave_the_result_alone(run, tmp_path, monkeypatch, capsys, options, wanted):
    monkeypatch.chdir(tmp_path)
    assert certify(run, *QUICK) == 0
    before = (run / "run.json").read_bytes()
    assert "is not updated" not in capsys.readouterr().out
    assert certify(run, *QUICK, *options) == 0
    assert f"run.json is not updated. Reports require: {wanted}" in capsys.readouterr().out
    assert (run / "run.json").read_bytes() == before


@pytest.mark.parametrize(
    "options",
    [["--adaptive"], pytest.param(["--radii", *[str(0.25 * k) for k in range(1, 12)]], marks=pytest.mark.slow)],
)
def test_adaptive_certificates_are_kept_without_the_average_radius(run, options):
    assert certify(run, *QUICK) == 0
    (run / "certified-0.5.tsv").unlink()
    assert certify(run, *QUICK, *options, "--all") == 0
    found = json.loads((run / "run.json").read_text())
    assert (found["certified"]["n"], found["certified"]["adaptive"], found["certified"]["images"]) == (500, True, 1297)
    rows = read(run / "certified-0.5.tsv")[1]
    share = sum(row.correct and row.radius >= 0.5 for row in rows) / 1297
    assert found["last"]["certified_accuracy_0.5"] == pytest.approx(share)
    assert "average_certified_radius" not in found["last"]


def test_what_is_there_is_not_done_again_and_more_can_be_added(run, capsys):
    assert certify(run, *QUICK, "--max", "5") == 0
    first = lines(run / "certified-0.5.tsv")
    assert len(first) == 1 + 5
    assert certify(run, *QUICK) == 0
    assert "60/60 images" in capsys.readouterr().out
    assert lines(run / "certified-0.5.tsv")[:6] == first
    assert certify(run, *QUICK) == 0
    assert "images," not in capsys.readouterr().out
    assert certify(run, *QUICK, "--skip", "10") == 0
    found = [int(line[0]) for line in lines(run / "certified-0.5.tsv")[1:]]
    assert found == list(range(0, 1297, 10))


@pytest.mark.slow
def test_killed_in_the_middle_and_resumed_it_is_the_same(run, tmp_path):
    whole, cut = tmp_path / "whole.tsv", tmp_path / "cut.tsv"
    slow = [run, "--n", "6000", "--skip", "10", "--out"]
    command = maxup_after(KILLED, "certify", *slow, cut)
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    assert subprocess.run(command, env=env, stdout=subprocess.DEVNULL).returncode == -signal.SIGKILL
    assert len(read(cut)[1]) == 3 * TOGETHER < 130
    with cut.open("a") as file:
        file.write("1290\t3\t")  # and a line half written
    assert certify(*slow, cut) == 0
    assert certify(*slow, whole) == 0
    assert lines(cut) == lines(whole)


@pytest.mark.slow
def test_two_processes_write_the_same_file(run, tmp_path):
    assert certify(run, *QUICK, "--out", tmp_path / "one.tsv") == 0
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone", "-m",
               "--", "maxup", "certify", str(run), *QUICK, "--out", str(tmp_path / "two.tsv")]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert lines(tmp_path / "two.tsv") == lines(tmp_path / "one.tsv")
    assert not list(tmp_path.glob("*.rank-*"))


def test_adaptive_sampling_saves_and_says_so(run, tmp_path, capsys):
    options = ["--n", "5000", "--max", "20"]
    assert certify(run, *options, "--out", tmp_path / "fixed.tsv") == 0
    assert certify(run, *options, "--radii", "0.25", "--out", tmp_path / "adaptive.tsv") == 0
    assert "% saved" in capsys.readouterr().out
    fixed, adaptive = read(tmp_path / "fixed.tsv")[1], read(tmp_path / "adaptive.tsv")[1]
    assert sum(row.samples for row in adaptive) < 0.8 * 5000 * 20
    differ = [a.idx for a, b in zip(fixed, adaptive, strict=True) if (a.radius >= 0.25) != (b.radius >= 0.25)]
    assert len(differ) <= 1  # an image may lie at the edge


def test_an_export_and_a_user_network(run, tmp_path, monkeypatch):
    assert main(["export", str(run), str(tmp_path / "model")]) == 0
    assert certify(run, *QUICK) == 0
    assert certify(tmp_path / "model", *QUICK) == 0
    assert lines(tmp_path / "model" / "certified-0.5.tsv") == lines(run / "certified-0.5.tsv")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_net.py").write_text(
        "import maxup\nfrom maxup.lab.data import load_data\n\n"
        f"def net():\n    return maxup.load({str(tmp_path / 'model')!r})\n"
        "\ndef data():\n    d, _ = load_data('digits')\n    return d.x[:10], d.y[:10], d.x[10:40], d.y[10:40]\n"
    )
    assert certify("--module", "own_net:net", "--data", "digits", "--sigma", "0.5", *QUICK, "--max", "3") == 0
    assert len(read(tmp_path / "certified-0.5.tsv")[1]) == 3
    own = ["--module", "own_net:net", "--data_from", "own_net:data", "--sigma", "0.3", "--all"]
    assert certify(*own, *QUICK) == 0
    assert len(read(tmp_path / "certified-0.3.tsv")[1]) == 30


NET = """import torch
class Net(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x.flatten(1))
def net():
    torch.manual_seed(0)
    return Net(64, 10)
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """Runs `maxup certify --module` on a network of this source."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def run(source, *arguments):
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        monkeypatch.delitem(sys.modules, "mine", raising=False)
        (tmp_path / "mine.py").write_text(source)
        return certify("--module", "mine:net", "--data", "digits", "--sigma", "0.5", *QUICK, "--max", "2", *arguments)

    return run


def test_a_changed_forward_pass_is_another_network(mine, tmp_path, capsys):
    assert mine(NET) == 0
    assert mine(NET.replace("x.flatten(1)", "x.flatten(1) * 1.0")) == 0
    before = (tmp_path / "certified-0.5.tsv").read_bytes()
    assert mine(NET.replace("x.flatten(1)", "2 * x.flatten(1) - 1")) == 1
    assert "was certified with the same weights but a different forward pass" in capsys.readouterr().err
    assert (tmp_path / "certified-0.5.tsv").read_bytes() == before


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("[0]", "the model returned shape (10,) for"),
        (".nonsense()", "'Tensor' object has no attribute 'nonsense'"),
        (" / 0", "logits that are not finite"),
    ],
)
def test_a_network_that_fails_leaves_no_file(mine, tmp_path, capsys, wrong, said):
    assert mine(NET.replace("x.flatten(1))", f"x.flatten(1)){wrong}")) == 1
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_network_of_half_precision(mine, tmp_path, dtype):
    half = f"{NET}\n\nwhole = net\n\ndef net():\n    return whole().to(torch.{dtype})\n"
    assert mine(half, "--dtype", dtype) == 0
    assert read(tmp_path / "certified-0.5.tsv")[0]["dtype"] == dtype


def test_a_network_of_another_precision_gets_one_message(mine, tmp_path, capsys):
    assert (
        mine("import torch.nn as nn\ndef net():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()")
        == 1
    )
    said = capsys.readouterr().err
    assert "for float32 images of shape (2, 1, 8, 8) the network raised RuntimeError" in said
    assert said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]


def test_a_plot_does_not_replace_the_certificates(run, tmp_path, capsys):
    assert certify(run, *QUICK, "--max", 2, "--out", tmp_path / "a.svg", "--plot", tmp_path / "x" / ".." / "a.svg") == 1
    assert "would overwrite the certificates in that file; give another file" in capsys.readouterr().err


def test_reports_of_attacks_keep_the_whole_name(run, tmp_path):
    assert certify(run, *QUICK, "--max", 2, "--out", tmp_path / "b.1", "--attack") == 0
    assert (tmp_path / "b.1.attack.json").is_file()


def test_ctrl_c_says_how_to_resume(mine, capsys):
    wait = NET.replace("return super", "raise KeyboardInterrupt\n        return super")
    assert mine(wait) == 130
    assert "interrupted; the same command resumes" in capsys.readouterr().err


def test_certificates_hold_under_attack(run, capsys):
    assert certify(run, *QUICK, "--attack") == 0
    assert " 0 broken" in capsys.readouterr().out
    record = json.loads((run / "certified-0.5.attack.json").read_text())
    assert (record["n"], record["alpha"], record["seed"]) == (500, 0.001, 0)
    assert record["environment"] == read(run / "certified-0.5.tsv")[0]["environment"]
    assert record["attacked"] == record["held"] + record["abstained"] > 20
    assert certify(run, *QUICK, "--attack", "4") == 0
    assert json.loads((run / "certified-0.5.attack-4.json").read_text())["broken"] > 5
    assert json.loads((run / "certified-0.5.attack.json").read_text()) == record


def test_a_picture(run, tmp_path, capsys):
    assert certify(run, *QUICK, "--picture", tmp_path / "a.png", "--image", "3") == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads(capsys.readouterr().out.splitlines()[0])["image"] == 3
    assert not list(run.glob("*.tsv"))


def test_several_tables_are_shown_side_by_side(run, tmp_path, capsys):
    for sigma in ("0.25", "0.5"):
        assert certify(run, *QUICK, "--sigma", sigma) == 0
    capsys.readouterr()
    assert certify(run / "certified-0.25.tsv", run / "certified-0.5.tsv", "--plot", tmp_path / "p.svg") == 0
    printed = capsys.readouterr().out
    assert "sigma 0.25" in printed
    assert "best at each" in printed
    assert "<svg" in (tmp_path / "p.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--n", "50"], "n=50 is below n0=100"),
        (["--out", "/dev/null/a.tsv"], "/dev/null/a.tsv cannot be written: "),
        (["--plot", "/dev/null/a.png"], "/dev/null/a.png cannot be written: "),
        (["--picture", "/dev/null/a.png"], "/dev/null/a.png cannot be written: "),
        (["--image", "5000", "--picture", "a.png"], "there is no image 5000"),
    ],
)
def test_wrong_settings_gets_one_message(run, capsys, arguments, message):
    assert certify(run, *QUICK, *arguments) == 1
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err
    assert not list(run.glob("*.tsv"))


@pytest.mark.parametrize("option", ["n", "n0", "batch", "skip", "max", "sigma", "alpha", "radii"])
def test_numbers_are_checked_before_anything_is_loaded(capsys, option):
    with pytest.raises(SystemExit):
        certify("nowhere", f"--{option}", "nan" if option == "radii" else "0")
    assert f"argument --{option}: must be a " in capsys.readouterr().err


def test_skip_and_all_exclude_each_other(capsys):
    with pytest.raises(SystemExit):
        certify("nowhere", "--skip", "20", "--all")
    assert "not allowed with argument" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "what"), [(["--dtype", "bfloat16"], "dtype"), (["--n", "600"], "n"), (["--seed", "1"], "seed")]
)
def test_rows_of_something_else_are_rejected_and_not_overwritten(run, capsys, change, what):
    assert certify(run, *QUICK, "--max", "2") == 0
    before = (run / "certified-0.5.tsv").read_bytes()
    assert certify(run, *QUICK, "--max", "3", *change) == 1
    assert f"was certified with {what}=" in capsys.readouterr().err
    assert (run / "certified-0.5.tsv").read_bytes() == before


def test_rows_of_another_model_are_rejected(run, tmp_path, capsys):
    assert certify(run, *QUICK, "--max", "2") == 0
    train(parse_recipe("smoke/digits-gaussian-maxup", ["--epochs", "1"]), tmp_path / "other", quiet=True)
    assert certify(tmp_path / "other", *QUICK, "--out", run / "certified-0.5.tsv") == 1
    assert "was certified with model=" in capsys.readouterr().err


def test_only_the_requested_images_are_shown_and_others_are_kept(run, capsys):
    assert certify(run, *QUICK, "--all") == 0
    whole = (run / "run.json").read_bytes()
    capsys.readouterr()
    assert certify(run, *QUICK, "--max", "9", "--attack") == 0
    attack = (run / "certified-0.5.attack.json").read_bytes()
    assert re.search(r"images +9\n", capsys.readouterr().out)
    assert certify(run, *QUICK, "--max", "3", "--attack") == 0
    assert "certified-0.5.attack.json is unchanged: it already covers more images" in capsys.readouterr().out
    assert certify(run, *QUICK) == 0
    assert "run.json is not updated: it already has these certificates for 1297 images" in capsys.readouterr().out
    assert ((run / "run.json").read_bytes(), (run / "certified-0.5.attack.json").read_bytes()) == (whole, attack)


def test_a_file_is_written_by_one_at_a_time(run, capsys):
    with locked(run, "certified-0.5.tsv"):
        assert certify(run, *QUICK) == 1
    assert f"certified-0.5.tsv is in use by process {os.getpid()}; wait for it" in capsys.readouterr().err
    assert certify(run, *QUICK) == 0
    assert not list(run.glob(".certified*"))


@pytest.mark.slow
def test_several_processes_are_rejected_in_one_message(run, tmp_path):
    (tmp_path / "other.tsv").write_text("something else")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone", "-m",
               "--", "maxup", "certify", str(run), *QUICK, "--out", str(tmp_path / "other.tsv")]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert done.stderr.count("maxup certify: ") == 1
    assert "Connection closed" not in done.stderr
    assert (tmp_path / "other.tsv").read_text() == "something else"


def test_an_attack_needs_a_gradient(mine, capsys):
    still = NET.replace("return super().forward(x.flatten(1))", "return super().forward(x.flatten(1)).detach()")
    assert mine(still, "--attack") == 1
    assert "the model's outputs have no gradient with respect to x, which the attack needs" in capsys.readouterr().err


def test_what_cannot_be_certified_gets_one_message(run, tmp_path, capsys):
    train(parse_recipe("digits/mlp-gaussian", ["--epochs", "1"]), tmp_path / "plain", quiet=True)
    assert certify(tmp_path / "plain") == 1
    assert "set the noise with --sigma" in capsys.readouterr().err
    assert certify(tmp_path / "nowhere") == 1
    assert f"{tmp_path / 'nowhere'}" in capsys.readouterr().err
    assert certify("--module", "json:loads", "--sigma", "1") == 1
    assert "--module needs images" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        certify()
    assert "give one folder, or --module; or TSV files to show" in capsys.readouterr().err
    assert certify("--module", "json:loads", "--data", "text", "--sigma", "1") == 1
    assert "text has no test images in memory" in capsys.readouterr().err
    assert certify(tmp_path / "nofile.tsv") == 1
    assert f"{tmp_path / 'nofile.tsv'} does not exist; give a TSV" in capsys.readouterr().err
    (tmp_path / "no.tsv").write_text("a\tb\n")
    assert certify(tmp_path / "no.tsv") == 1
    assert "is not a certificates file" in capsys.readouterr().err


def test_train_certifies_at_once(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quick = ["--epochs", "1", "--model.args.hidden", "[8]", "--trackers", "none"]
    assert main(["train", "digits/mlp-gaussian", "--certify", *quick]) == 1
    assert "--certify needs noise on pixels: set model.normalize true" in capsys.readouterr().err
    assert main(["train", "text/awd_lstm-embedding_dropout", "--certify"]) == 1
    assert "--certify is for images" in capsys.readouterr().err
    with monkeypatch.context() as several:
        several.setenv("WORLD_SIZE", "2")
        assert main(["train", "smoke/digits-gaussian", "--certify", *quick]) == 1
    assert "--certify runs in one process" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    assert main(["train", "smoke/digits-gaussian", "--certify", "--data.train_size", "1750", *quick]) == 0
    run = json.loads((tmp_path / "runs" / "smoke" / "digits-gaussian" / "seed-0" / "run.json").read_text())
    assert run["certified"]["n"] == 100_000
    assert run["certified"]["images"] == 3
    assert 0 <= run["last"]["certified_accuracy_0.5"] <= 1


def test_an_older_step_is_not_recorded_as_the_run_s(tmp_path, capsys):
    """The newest checkpoint is damaged, so an older one is opened; run.json is of the newest."""
    run = tmp_path / "run"
    words = ["--epochs", "2", "--model.args.hidden", "[8]"]
    train(parse_recipe("smoke/digits-gaussian", words), run, quiet=True)
    before = (run / "run.json").read_bytes()
    older, newest = sorted((run / "checkpoints").glob("step-*"))[-2:]
    steps = [int(path.name.removeprefix("step-")) for path in (older, newest)]
    assert json.loads(before)["steps"] == steps[1]
    (newest / "manifest.json").write_text("{")
    assert certify(run, *QUICK) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert f"{run / 'run.json'} has step {steps[1]}" in said
    assert f"the newest valid checkpoint has step {steps[0]}" in said
    assert not list(run.glob("*.tsv"))
    assert certify(run, *QUICK, "--out", tmp_path / "a.tsv") == 0
    assert (run / "run.json").read_bytes() == before
    assert certify(run, *QUICK, "--picture", tmp_path / "a.png") == 0


@pytest.mark.parametrize("edit", ["radius", "label", "line"])
def test_an_edited_file_reaches_neither_a_table_nor_run_json(run, capsys, edit):
    assert certify(run, *QUICK) == 0
    path, before = run / "certified-0.5.tsv", (run / "run.json").read_bytes()
    rows = path.read_text().splitlines(keepends=True)
    cells = rows[9].split("\t")
    if edit == "radius":
        cells[3] = "1.000000"
    elif edit == "label":
        cells[1] = str((int(cells[1]) + 1) % 10)
        cells[4] = str(int(cells[1] == cells[2]))
    rows[9:10] = ["\t".join(cells)] * (2 if edit == "line" else 1)
    path.write_text("".join(rows))
    capsys.readouterr()
    for arguments in ([path], [run, *QUICK]):
        assert certify(*arguments) == 1
        out, err = capsys.readouterr()
        assert "Certified accuracy" not in out
        assert re.fullmatch(rf"maxup certify: {re.escape(str(path))} was changed in line 1[01]: .*\n", err)
    assert (run / "run.json").read_bytes() == before


def test_rows_that_were_cut_off_are_certified_again(run):
    assert certify(run, *QUICK) == 0
    path, before = run / "certified-0.5.tsv", json.loads((run / "run.json").read_text())
    whole = lines(path)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-5]))
    assert certify(run, *QUICK) == 0
    assert lines(path) == whole
    assert json.loads((run / "run.json").read_text()) == before
    assert before["certified"]["images"] == len(whole) - 1 == 65


def test_rows_removed_at_the_end_are_missed(run, capsys):
    path = run / "certified-0.5.tsv"
    assert certify(run, *QUICK) == 0
    whole = lines(path)
    assert "covers" not in capsys.readouterr().out
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert certify(path) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"{path} covers 64 of 65 images; run the same command to finish it." in said
    assert certify(run, *QUICK, "--max", "5") == 0  # shows these; the file still has 64
    assert "covers" not in capsys.readouterr().out
    assert certify(run, *QUICK) == 0
    assert "1/1 images" in capsys.readouterr().out
    assert lines(path) == whole
