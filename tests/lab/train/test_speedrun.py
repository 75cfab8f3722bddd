"""The recipes cifar10/speedrun against a loop written by hand, and resumed."""

import numpy as np
import pytest
import torch
from accelerate.utils import set_seed
from torch.nn import functional as F

from maxup import Cutout
from maxup.lab.recipes.load import parse_recipe
from maxup.lab.storage import checkpoint
from maxup.lab.tasks.vision import Vision
from maxup.lab.train.loop import train
from maxup.rng import make_generator, stream_seed
from tests.lab.train.test_resume_exact import fingerprint
from tests.waiting import at_call

N, SIDE, BATCH, EPOCHS, EVERY, DEPTH = 60, 12, 20, 3, 2, 3
LR = 0.05  # at the rate of the recipe, which is for large batches, rounding errors grow tenfold per step
SMALL = [
    "--model.args", f"{{widths: [6, 8], depth: {DEPTH}}}", "--perturb", "[{name: cutout, length: 5}]",
    "--batch_size", str(BATCH), "--epochs", str(EPOCHS), "--precision", "no", "--optim.lookahead", str(EVERY),
    "--optim.lr", str(LR),
]  # fmt: skip


def data():
    g = torch.Generator().manual_seed(0)
    x = torch.randint(256, (N + 30, 3, SIDE, SIDE), generator=g, dtype=torch.uint8)
    y = torch.arange(N + 30) % 5
    x[:, 0] = x[:, 0] // 5 + 40 * y.byte()[:, None, None]  # something to learn
    return x[:N], y[:N], x[N:], y[N:]


def normalized(x):
    pixels = data()[0].double() / 255
    mean, std = (f(pixels.transpose(0, 1).flatten(1), 1)[:, None, None] for f in (torch.mean, torch.std))
    return ((x.double() / 255 - mean) / std).float()


def forward(s, x, training):
    """The network as functions of its state. In training, the running statistics are updated."""
    x = F.gelu(F.conv2d(x, s["whiten.weight"], s["whiten.bias"]))
    for block in range(2):
        for i in range(DEPTH):
            x = F.conv2d(x, s[f"blocks.{block}.convs.{i}.weight"], padding=1)
            x = F.max_pool2d(x, 2) if i == 0 else x
            norm = f"blocks.{block}.norms.{i}."
            mean, var = s[norm + "running_mean"], s[norm + "running_var"]
            if training:
                values = x.transpose(0, 1).flatten(1)
                now, unbiased = values.detach().mean(1), values.detach().var(1)
                mean.copy_(0.6 * mean + 0.4 * now)
                var.copy_(0.6 * var + 0.4 * unbiased)
                mean, var = values.mean(1), values.var(1, correction=0)
            x = (x - mean[:, None, None]) / var[:, None, None].sqrt() + s[norm + "bias"][:, None, None]
            if i == 0:
                x = shortcut = F.gelu(x)
            else:
                x = F.gelu(x + shortcut if i == DEPTH - 1 else x)
    return x.flatten(2).max(2).values @ s["head.weight"].T / 9


def by_hand(initial, m):
    """Train as the recipe says. Returns the weights and the slow weights."""
    images, labels, _, _ = data()
    first = torch.rand(N, generator=make_generator("flip", 0)) < 0.5
    shifts, copies = (torch.Generator().manual_seed(stream_seed(0, 0, k)) for k in range(2))
    s = {name: value.clone() for name, value in initial.items()}
    slow = {name: value.clone() for name, value in s.items() if value.is_floating_point()}
    trained = [n for n in s if "convs" in n or "head" in n or n.endswith("bias")]
    buffers = dict.fromkeys(trained, 0.0)
    total, step = EPOCHS * N // BATCH, 0
    for epoch in range(EPOCHS):
        for rows in torch.randperm(N, generator=make_generator("order", 0, epoch)).split(BATCH):
            x = torch.stack([images[i].flip(-1) if first[i] != (epoch % 2 == 1) else images[i] for i in rows])
            y, x = labels[rows], normalized(x)
            offsets = torch.randint(5, (BATCH, 2), generator=shifts)
            torch.randint(2, (BATCH,), generator=shifts)  # crop_flip draws a flip, which is not used
            padded = F.pad(x, [2] * 4)
            moved = [p[:, a : a + SIDE, b : b + SIDE] for p, (a, b) in zip(padded, offsets.tolist(), strict=True)]
            batch, cutout = (torch.stack(moved), y), Cutout(5)
            candidates = [cutout.apply(batch, cutout.draw(batch, copies))[0] for _ in range(m)]
            x = candidates[0]
            if m > 1:
                losses = [F.cross_entropy(forward(s, c, False), y, label_smoothing=0.2, reduction="none")
                          for c in candidates]  # fmt: skip
                worst = torch.stack(losses).argmax(0)
                x = torch.stack([candidates[c][i] for i, c in enumerate(worst.tolist())])
            weights = [s[name].requires_grad_() for name in trained]
            loss = F.cross_entropy(forward(s, x, True), y, label_smoothing=0.2)
            gradients = torch.autograd.grad(loss, weights)
            rate = LR * float(np.interp(step / total, [0, 0.23, 1], [0.2, 1, 0.07]))
            for name, gradient in zip(trained, gradients, strict=True):
                factor = 64 if "norms" in name else 1
                s[name] = w = s[name].detach()
                gradient = gradient + 1.33e-3 / factor * w
                buffers[name] = 0.85 * buffers[name] + gradient
                w -= rate * factor * (gradient + 0.85 * buffers[name])
            if step % EVERY == EVERY - 1:
                decay = 0.95**EVERY * (step / total) ** 3
                slow = {name: decay * slow[name] + (1 - decay) * s[name] for name in slow}
                s |= {name: value.clone() for name, value in slow.items()}
            step += 1
    return s, slow


@pytest.mark.parametrize(("name", "m"), [("cifar10/speedrun", 1), ("cifar10/speedrun-maxup", 4)])
def test_the_recipe_against_a_loop_written_by_hand(tmp_path, name, m):
    recipe = parse_recipe(name, SMALL)
    set_seed(recipe.seed)
    initial = Vision(recipe, torch.device("cpu"), data_from=data).model.state_dict()
    result = train(recipe, tmp_path, quiet=True, data_from=data)
    saved = checkpoint.latest(tmp_path / "checkpoints", print)[1]
    weights, slow = by_hand(initial, m)
    for expected, found in ((weights, saved["model"]), (slow, saved["ema"])):
        for key in slow:
            torch.testing.assert_close(found[key], expected[key], atol=1e-4, rtol=1e-3, msg=key)
    assert not torch.equal(weights["head.weight"], slow["head.weight"])  # the last update is not in the average
    _, _, x, y = data()
    probabilities = [forward(slow, normalized(view), False).softmax(1) for view in (x, x.flip(-1))]
    accuracy = (probabilities[0].argmax(1) == y).double().mean().item()
    flip = ((probabilities[0] + probabilities[1]).argmax(1) == y).double().mean().item()
    assert (result["last"]["test_accuracy"], result["last"]["test_flip_accuracy"]) == pytest.approx((accuracy, flip))


def test_a_stopped_run_ends_as_one_that_was_never_stopped(tmp_path, monkeypatch):
    recipe = parse_recipe("cifar10/speedrun-maxup", SMALL)
    train(recipe, tmp_path / "whole", quiet=True, data_from=data, save_every=0)

    def stop():
        raise RuntimeError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(Vision, "step", Vision.step)  # restored afterwards
        at_call(Vision, "step", 6, stop)
        with pytest.raises(RuntimeError, match="stopped"):
            train(recipe, tmp_path / "run", quiet=True, data_from=data, save_every=0)
    assert checkpoint.latest(tmp_path / "run" / "checkpoints", print)[0] == 5
    train(recipe, tmp_path / "run", quiet=True, data_from=data, save_every=0)
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "whole")
