"""The code in docs/trainers.md gives the same weights in the trainers as in a hand-written loop."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, SequentialSampler

import maxup as mu
from tests.oracles import torchvision_v2

PAGE = (Path(__file__).parents[2] / "docs" / "trainers.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of the trainers


def shown(word):
    """Return the names that the page's block with this word defines."""
    (code,) = [block for block in BLOCKS if word in block]
    names = {name: getattr(mu, name) for name in mu.__all__} | {"torch": torch, "F": F}
    exec(code, names)
    return SimpleNamespace(**{name: value for name, value in names.items() if name.isidentifier()})


def data(n=24):
    g = torch.Generator().manual_seed(0)
    return [(torch.rand(3, 16, 16, generator=g), int(i % 4)) for i in range(n)]


def generator():
    return torch.Generator().manual_seed(7)


def test_lightning(tmp_path):
    torchvision_v2()
    pl = pytest.importorskip("pytorch_lightning")
    Classifier = shown("LightningModule").Classifier  # noqa: N806

    def build():
        torch.manual_seed(0)
        module = Classifier(nn.Sequential(nn.Flatten(), nn.Linear(768, 4)))
        module.objective.generator = generator()
        return module

    def fit(module, epochs, start=None):
        options = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = pl.Trainer(max_epochs=epochs, accumulate_grad_batches=2, enable_checkpointing=False, **options)
        trainer.fit(module, DataLoader(data(), batch_size=4), ckpt_path=start)
        return trainer

    module, by_hand = build(), build()
    fit(module, 1)
    optimizer = by_hand.configure_optimizers()
    for number, (x, y) in enumerate(DataLoader(data(), batch_size=4), 1):
        x, y = by_hand.objective.select(by_hand.net, x, y)
        (F.cross_entropy(by_hand.net(x), y) / 2).backward()
        if number % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
    for mine, theirs in zip(by_hand.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(theirs, mine)

    whole, cut, again = build(), build(), build()
    fit(whole, 2)
    fit(cut, 1).save_checkpoint(tmp_path / "a.ckpt")
    fit(again, 2, tmp_path / "a.ckpt")
    for mine, theirs in zip(again.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(theirs, mine)


def vit():
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    drops = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return ViTForImageClassification(ViTConfig(image_size=16, patch_size=8, num_labels=4, **sizes, **drops))


def hugging_face(kind, folder, accumulate, **options):
    """Take two steps with a trainer of this class, on images in order; return the model."""
    import transformers

    class InOrder(kind):
        def _get_train_sampler(self, *args):
            return SequentialSampler(self.train_dataset)

    settings = transformers.TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=4, gradient_accumulation_steps=accumulate, max_steps=2,
        learning_rate=0.1, lr_scheduler_type="constant", optim="sgd", max_grad_norm=0.0, report_to=[], use_cpu=True,
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    images, model = [{"pixel_values": x, "labels": y} for x, y in data()], vit()
    InOrder(model, settings, train_dataset=images, **options).train()
    return model


def by_hand(objective, accumulate):
    """Take the same two steps in a loop; return the model."""
    model = vit().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, (x, y) in enumerate(list(DataLoader(data(), batch_size=4))[: 2 * accumulate], 1):
        x, y = objective.select(model, {"pixel_values": x}, y)
        (F.cross_entropy(model(**x).logits, y) / accumulate).backward()
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    return model


def assert_same(one, other):
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(theirs, mine, atol=1e-6, rtol=1e-5)


def objective_of(perturbation):
    return mu.MaxUp(perturbation, m=4, forward=lambda model, x: model(**x).logits, generator=generator())


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_hugging_face(tmp_path, mixed, accumulate):
    torchvision_v2()
    pytest.importorskip("transformers")
    kind = shown("MaxUpTrainer(Trainer)").MaxUpTrainer
    drawn = mu.CutMix(num_classes=4, key="pixel_values") if mixed else mu.Gaussian(0.1, key="pixel_values")
    kind.objective = objective_of(drawn)
    loss = {"compute_loss_func": shown("soft_cross_entropy").soft_cross_entropy} if mixed else {}
    assert_same(by_hand(objective_of(drawn), accumulate), hugging_face(kind, tmp_path, accumulate, **loss))


def test_hugging_face_with_a_custom_loss(tmp_path):
    """With gradient accumulation, Trainer must know that the loss is not scaled yet."""
    torchvision_v2()
    transformers = pytest.importorskip("transformers")
    drawn = mu.Gaussian(0.1, key="pixel_values")
    objective = objective_of(drawn)

    class Custom(transformers.Trainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.model_accepts_loss_kwargs = False

        def compute_loss(self, model, inputs, *args, **kwargs):
            return objective.run(model, {"pixel_values": inputs["pixel_values"]}, inputs["labels"]).loss

    assert_same(by_hand(objective_of(drawn), 3), hugging_face(Custom, tmp_path, 3))
