"""`maxup sample`, and the other verbs on a run on text."""

import re
import shutil
import signal

import pytest
import torch

import maxup
from maxup.cli.main import main
from maxup.errors import DataError
from maxup.lab.tasks import dynamic_evaluation
from maxup.lab.tasks.sample import sample
from maxup.lab.train import loop
from maxup.lab.train.runs import open_run
from tests.lab.tasks.test_language import folder, recipe  # noqa: F401  # a fixture


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):  # noqa: F811
    out = tmp_path_factory.mktemp("run")
    loop.train(recipe(folder, epochs=8, objective="standard"), out, quiet=True)
    return out


def test_it_writes_text_of_the_vocabulary_which_the_seed_decides(run, capsys):
    texts = []
    for seed in ("0", "0", "1"):
        assert main(["sample", str(run), "--words", "40", "--seed", seed, "--prompt", "n1"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]
    assert texts[0].startswith("n1 ")
    assert {word for text in texts for word in text.split()} <= set(open_run(run).task.text.words)


def test_without_temperature_each_word_is_the_most_probable(run):
    """Against one pass over what was written."""
    opened = open_run(run)
    text, model = opened.task.text, opened.model
    wrote = sample(model, text, words=12, temperature=0.0, prompt="n2 v1", generator=torch.Generator())
    words = wrote.replace("\n", " <eos> ").split()
    ids = torch.tensor([[text.words.index(w) for w in ["<eos>", *words]]])
    with torch.no_grad():
        best = model.decode(model(ids, model.start(1)).output)[0].argmax(1)
    assert torch.equal(best[2:-1], ids[0, 3:])


@pytest.mark.parametrize("temperature", [1e-6, 1e-45, 1e-320])
def test_the_lowest_temperatures_take_the_most_probable_word_too(run, temperature):
    opened = open_run(run)
    wrote = [
        sample(opened.model, opened.task.text, words=9, temperature=t, prompt="n2", generator=torch.Generator())
        for t in (0.0, temperature)
    ]
    assert wrote[0] == wrote[1]


def test_draws_follow_the_model_s_distribution(run):
    from scipy import stats

    opened = open_run(run)
    text, model, generator = opened.task.text, opened.model, torch.Generator().manual_seed(0)
    options = {"words": 1, "temperature": 1.0, "prompt": "n2", "generator": generator}
    drawn = [sample(model, text, **options).split()[1:] or ["<eos>"] for _ in range(600)]
    counts = torch.zeros(len(text.words))
    for (word,) in drawn:
        counts[text.words.index(word)] += 1
    ids = torch.tensor([[text.words.index(w) for w in ("<eos>", "n2")]])
    with torch.no_grad():
        p = model.decode(model(ids, model.start(1)).output)[0, -1].double().softmax(0)
    often = p * 600 > 5
    observed = [*counts[often].tolist(), counts[~often].sum().item()]
    expected = [*(600 * p[often]).tolist(), 600 * p[~often].sum().item()]
    observed, expected = zip(*[(o, e) for o, e in zip(observed, expected, strict=True) if e > 1], strict=True)
    scale = sum(observed) / sum(expected)
    assert stats.chisquare(observed, [e * scale for e in expected]).pvalue > 1e-3


def test_eval_tells_perplexities_also_with_dynamic_evaluation(run, capsys):
    assert main(["eval", str(run), "--dynamic"]) == 0
    out = capsys.readouterr().out
    found = [float(number) for number in re.findall(r"perplexity ([\d.]+)", out)]
    assert len(found) == 4
    assert all(1 < number < 30 for number in found)
    assert "words)" in out
    assert (run / "dynamic.json").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_dynamic_evaluation_says_how_to_resume(run, tmp_path, capsys, monkeypatch, number):
    copy = shutil.copytree(run, tmp_path / "run", ignore=shutil.ignore_patterns("dynamic.json"))
    real, calls = dynamic_evaluation.adapt, []

    def adapt(*args, **kwargs):
        calls.append(args)
        if len(calls) == 2:
            signal.raise_signal(number)
        return real(*args, **kwargs)

    monkeypatch.setattr(dynamic_evaluation, "adapt", adapt)
    assert main(["eval", str(copy), "--dynamic"]) == 130
    assert capsys.readouterr().err == (
        f"maxup eval: stopped in dynamic evaluation; finished parts are saved in {copy / 'dynamic.json'}, and the same "
        "command resumes\n"
    )
    assert main(["eval", str(copy), "--dynamic"]) == 0
    assert len(calls) == 2 + 17  # 18 parts, one of them begun twice


def test_an_exported_model_is_read_back(run, tmp_path, capsys):
    assert main(["export", str(run), str(tmp_path / "model")]) == 0
    model, opened = maxup.load(tmp_path / "model"), open_run(run)
    assert model.config["words"] == list(opened.task.text.words)
    ids = torch.randint(len(model.config["words"]), (2, 5))
    with torch.no_grad():
        ours, theirs = (m(ids, m.start(2)).output for m in (model, opened.model))
    assert torch.equal(ours, theirs)
    capsys.readouterr()


def test_a_run_whose_text_moved_is_opened_with_data_root(folder, tmp_path, capsys):  # noqa: F811
    before, now, out = tmp_path / "before", tmp_path / "now", str(tmp_path / "run")
    shutil.copytree(folder, before)
    record = loop.train(recipe(before, epochs=1), tmp_path / "run", quiet=True)
    before.rename(now)
    for words in (["eval", out], ["sample", out], ["export", out, str(tmp_path / "model")]):
        assert main(words) == 1
        error = capsys.readouterr().err
        assert error.endswith(f"trained on {before}, which does not exist here; pass its new path with --data.root\n")
        assert main([*words, "--data.root", str(now)]) == 0
    capsys.readouterr()
    assert loop.train(recipe(now, epochs=1), tmp_path / "run", quiet=True) == record  # training finds it, too


def test_what_is_for_images_says_so(run, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words in (["show", str(run)], ["eval", str(run), "--robustness"]):
        assert main(words) == 1
        assert "is a language-model run, but this command needs an image run" in capsys.readouterr().err
    for words in (["--robustness"], ["--certify", "2"], ["--images", "2"]):
        assert main(["compare", "smoke/awd_lstm-embedding_dropout", "--seeds", "2", *words]) == 1
        assert "a language model, but --certify, --robustness and --images need a classifier" in capsys.readouterr().err
    for option, value in (("--words", "0"), ("--temperature", "-1"), ("--seed", "9" * 23), ("--seed", "-1")):
        with pytest.raises(SystemExit):
            main(["sample", str(run), option, value])
    assert "argument --seed: must be a whole number from 0 to 4000000000, but is '-1'" in capsys.readouterr().err
    assert main(["train", "digits/mlp-gaussian", "--epochs", "1", "--out", "digits", "--trackers", "none"]) == 0
    capsys.readouterr()
    for verb in (["sample"], ["eval", "--dynamic"]):
        assert main([verb[0], "digits", *verb[1:]]) == 1
        assert "is an image run, but this command needs a language-model run" in capsys.readouterr().err


def test_a_line_break_in_a_prompt_ends_a_sentence(run, capsys):
    texts = []
    for prompt in ("n1 v2\nn3", "n1 v2 <eos> n3", "n1 v2 n3"):
        assert main(["sample", str(run), "--prompt", prompt]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    assert texts[0].startswith("n1 v2 \nn3 ")
    assert texts[2].startswith("n1 v2 n3 ")


def test_a_prompt_with_a_word_nobody_knows(run, capsys):
    assert main(["sample", str(run), "--prompt", "n1 zebra"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "maxup sample: 'zebra' in the prompt is not in the vocabulary; choose another word\n"


def test_an_unknown_word_in_a_prompt_is_replaced(folder, tmp_path, capsys):  # noqa: F811
    text = shutil.copytree(folder, tmp_path / "text")
    (text / "valid.txt").write_text("n1 okapi\n" + (text / "valid.txt").read_text())  # so that there is <unk>
    loop.train(recipe(text, epochs=1), tmp_path / "run", quiet=True)
    assert main(["sample", str(tmp_path / "run"), "--prompt", "n1 zebra"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("n1 <unk> ")
    assert printed.out.count("<unk>") == 1  # none is drawn
    assert printed.err == "not in the vocabulary, replaced by <unk>: zebra\n"


def test_a_prompt_is_split_like_the_text_of_a_file(tmp_path, capsys):
    path = tmp_path / "book.txt"
    path.write_text("The cat sat on the mat. It isn't big!\n" * 60)
    loop.train(recipe(path, epochs=1), tmp_path / "run", quiet=True)
    texts = []
    for prompt in ("The CAT sat on the mat.\nIt isn't", "the cat sat on the mat . <eos> it isn ' t"):
        assert main(["sample", str(tmp_path / "run"), "--prompt", prompt]) == 0
        printed = capsys.readouterr()
        texts.append(printed.out)
        assert printed.err == ""
    assert texts[0] == texts[1]
    assert texts[0].startswith("the cat sat on the mat . \nit isn ' t ")
    assert main(["sample", str(tmp_path / "run"), "--prompt", "the Zebra!"]) == 1
    assert "'zebra' in the prompt is not in the vocabulary" in capsys.readouterr().err


def test_a_prompt_for_a_folder_is_split_at_spaces(run, capsys):
    assert main(["sample", str(run), "--prompt", "N1"]) == 1
    assert "'N1' in the prompt is not in the vocabulary" in capsys.readouterr().err


def test_a_text_without_ends_of_sentences_needs_a_prompt(tmp_path, capsys):
    """Token ids; and one paragraph, whose end is in the test split."""
    ids, book = torch.arange(400) % 7, tmp_path / "book.txt"
    loop.train(recipe(tmp_path, epochs=1), tmp_path / "ids", quiet=True, data_from=lambda: ids)
    book.write_text("the cat sat on the mat . " * 80)
    loop.train(recipe(book, epochs=1), tmp_path / "book", quiet=True)
    for run, prompt, data_from in ((tmp_path / "ids", "3", lambda: ids), (tmp_path / "book", "the cat", None)):
        opened = open_run(run, data_from=data_from)
        assert "<eos>" not in opened.task.text.words
        options = {"words": 4, "temperature": 0.0, "generator": torch.Generator()}
        words = sample(opened.model, opened.task.text, prompt=prompt, **options).split()
        given = prompt.split()
        assert words[: len(given)] == given
        tokens = torch.tensor([[opened.task.text.words.index(word) for word in words]])
        with torch.no_grad():  # against one pass over what was written
            best = opened.model.decode(opened.model(tokens, opened.model.start(1)).output)[0].argmax(1)
        assert torch.equal(best[len(given) - 1 : -1], tokens[0, len(given) :])
        with pytest.raises(
            DataError, match=r"^the prompt is empty, but the vocabulary has no <eos> .*; give a prompt$"
        ):
            sample(opened.model, opened.task.text, prompt=" ", **options)
    assert main(["sample", str(tmp_path / "book")]) == 1
    assert "; give a prompt\n" in capsys.readouterr().err
