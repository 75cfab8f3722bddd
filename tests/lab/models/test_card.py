"""A model card has the numbers of the run's record, and text is shown as text."""

import yaml

from maxup.lab.models.card import model_card

CONFIG = {
    "recipe": {
        "model": {"name": "conv", "normalize": False}, "data": {"name": "digits"}, "seed": 3, "epochs": 5,
        "objective": {"name": "maxup", "m": 4},
    },
    "task": {"model_from": "", "data_from": ""},
    "metrics": {"epoch": 5, "test_loss": 0.25, "test_accuracy": 0.9125, "certified_accuracy_0.25": 0.5},
    "step": 120, "classes": list("abc"), "shape": [1, 8, 8], "mean": [0.1], "std": [0.5], "top": 16,
}  # fmt: skip
RECORD = {"environment": {"hardware": "a CPU", "versions": {"torch": "2.13"}}, "training_seconds": 61.4}


def rows(card):
    lines = (line.strip("|").split("|") for line in card.splitlines() if line.startswith("| "))
    return {name.strip(): value.strip() for name, value in lines}


def test_numbers_are_those_of_the_record():
    card = model_card(CONFIG, RECORD)
    _, head, _ = card.split("---\n", 2)
    assert yaml.safe_load(head) == {
        "library_name": "maxup", "pipeline_tag": "image-classification", "tags": ["maxup"]
    }  # fmt: skip
    assert rows(card) == {
        "metric": "value", "test loss": "0.2500", "test accuracy": "91.25 %", "certified accuracy 0.25": "50.00 %"
    }  # fmt: skip
    assert "# conv on digits\n" in card
    assert "objective maxup, m = 4" in card
    assert "from step 120, with seed 3. The metrics are from epoch 5." in card
    assert "trained on a CPU, with PyTorch 2.13, in 61 seconds." in card
    assert "`(x / 16 - mean) / std` with mean [0.1] and std [0.5]" in card


def test_without_a_record_there_is_no_hardware():
    card = model_card(CONFIG)
    assert "It was trained" not in card
    assert rows(card)["test accuracy"] == "91.25 %"


def test_your_code_and_text():
    card = model_card(CONFIG | {"task": {"model_from": "mine:net", "data_from": "mine:data"}})
    assert "# mine:net on mine:data\n" in card
    assert 'maxup.load("FOLDER", model_from=YOUR_FUNCTION)' in card
    words = {key: value for key, value in CONFIG.items() if key not in ("classes", "shape", "mean", "std", "top")}
    card = model_card(words | {"words": ["a", "b"], "metrics": {"test_perplexity": 68.526}})
    assert "pipeline_tag: text-generation\n" in card
    assert rows(card)["test perplexity"] == "68.53"


def test_a_name_cannot_add_markup():
    hostile = "x\n---\n| a | b |<script>\x1b[31m"
    card = model_card(CONFIG | {"task": {"model_from": hostile, "data_from": ""}})
    assert "\n| a" not in card
    assert "<script>" not in card.replace("\\<script\\>", "")
    assert "\x1b" not in card


def test_rows_and_tokens_are_not_called_images():
    rows_of_4 = model_card(CONFIG | {"shape": [4], "mean": [0.1] * 4, "std": [0.5] * 4, "top": 1})
    assert "pipeline_tag: tabular-classification\n" in rows_of_4
    assert "takes rows of 4 numbers, normalized as `(x - mean) / std` with `mean` and `std` in" in rows_of_4
    named = model_card(CONFIG | {"shape": [2], "mean": [0.1] * 2, "std": [0.5] * 2, "top": 1, "columns": ["w", "h"]})
    assert "takes rows of 2 numbers in the order of `columns` in `config.json` (w, h), normalized as" in named
    tokens = model_card(CONFIG | {"shape": [10], "mean": [], "std": [], "top": 1})
    assert "pipeline_tag: text-classification\n" in tokens
    assert "It takes token ids (B, 10). It returns the logits of" in tokens
    assert "image" not in rows_of_4 + tokens
