"""The data sets and recipes of experiments in benchmarks/."""

from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest
import torch

from benchmarks import cifar16, docstrings, ptb_quarter
from maxup.integrations.common import require
from maxup.lab.data import load_data
from maxup.lab.recipes.load import parse_recipe

RECIPES = sorted((Path(__file__).parent.parent / "benchmarks").glob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipes_are_valid_and_open_with_their_command(path):
    recipe = parse_recipe(str(path), [])
    assert recipe.objective["name"] == "maxup"
    assert f"maxup compare benchmarks/{path.name}" in path.read_text().splitlines()[0]


def test_small_images_are_averages_of_cifar10(data_root, monkeypatch):
    monkeypatch.setenv("MAXUP_DATA", str(data_root))
    (x, labels), (test, _) = cifar16.data()
    large = load_data("cifar10")[0]
    assert (tuple(x.shape), tuple(test.shape), x.dtype) == ((50000, 3, 16, 16), (10000, 3, 16, 16), torch.uint8)
    block = large.x[7, 2, 4:6, 10:12].float()
    assert int(x[7, 2, 2, 5]) == round(block.mean().item())
    assert labels[7] == large.classes[large.y[7]]
    assert set(Counter(labels).values()) == {5000}
    (kept, _), (others, classes) = cifar16.held_out()
    assert torch.equal(torch.cat([kept, others]), x)
    assert (len(others), classes[5]) == (10_000, labels[40_005])


def test_a_quarter_of_penn_treebank(data_root, monkeypatch):
    monkeypatch.setenv("MAXUP_DATA", str(data_root))
    train, validation, test = ptb_quarter.data()
    text = load_data("ptb")
    assert len(train) == 929_589 // 4
    assert torch.equal(train, text.train[: len(train)])
    assert (len(validation), len(test)) == (73_760, 82_430)


def test_docstrings_are_ids_with_the_name_of_a_package():
    ids, packages = docstrings.data()
    assert ids.shape == (len(packages), docstrings.LENGTH)
    assert int(ids.min()) >= 0
    assert len(set(packages)) == len(docstrings.PACKAGES)


def test_the_pretrained_encoder_reads_docstrings(tmp_path, monkeypatch):
    transformers = require("this test", "transformers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "return", "the"]
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(words))
    transformers.BertTokenizerFast(str(vocabulary)).save_pretrained(tmp_path)
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )
    transformers.BertModel(config).save_pretrained(tmp_path)
    monkeypatch.setenv("MAXUP_MINILM", str(tmp_path))
    minilm = import_module("benchmarks.minilm")
    minilm.data.cache_clear()
    ids, packages = minilm.data()
    assert packages == docstrings.data()[1]
    assert (ids.shape[1], set(ids[:, 0].tolist())) == (32, {2})  # [CLS]
    model = minilm.encoder((32,), 12).eval()
    short = torch.tensor([[2, 5, 6, 3, 0, 0]])
    torch.testing.assert_close(model(short), model(short[:, :4]))  # padding has no effect
