"""Measure cheaper ways to score copies: how much of the loss gap each one keeps, and what it costs.

    python -m benchmarks.fast_modes --data DIR --out results
    python -m benchmarks.fast_modes --photos DIR --epochs 8 --ms 4 --out results/fast_modes-photos.json
    python -m benchmarks.fast_modes --photos DIR --network vit --epochs 30 --ms 4 --compile --out FILE
    python -m benchmarks.fast_modes --photos DIR --pixels 128 --epochs 5 --train_m 1 --ms 4 --out FILE  # for a CPU

The network of the speed run trains on CIFAR-10, or a ResNet-18 or a ViT-S/16 on a folder of photos, once per
perturbation. At several points during the training, m copies of a batch are scored exactly and by every mode, on the
same draws. The *gap* is the mean loss of the selected copies minus that of all copies. Exact scoring keeps all of it, a
random choice nothing. The *cost* is the time of scoring, as a CUDA graph where there is a GPU, relative to a standard
training step.

The baseline for every mode is exact scoring of fewer copies. A mode is worth having only where it keeps more of the gap
at the same cost.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.networks import ViT
from benchmarks.speedrun import batches, channels_last, load, mixed, on_device
from benchmarks.speedrun_rows import Proxy, device, smoothed
from maxup import CropFlip, CutMix, Cutout, Gaussian, MaxUp
from maxup.batch import Batch
from maxup.cuda.graph import capture_graph
from maxup.isolation import preserve_state
from maxup.lab.bench.fidelity import compare
from maxup.lab.bench.timing import interleaved
from maxup.lab.data import load_data
from maxup.lab.environment import environment
from maxup.lab.models.external import create_external
from maxup.lab.models.speednet import LOGIT_SCALE, SpeedNet, speednet
from maxup.lab.report.figure import COLORS, MARKERS, save_figure
from maxup.lab.storage.atomic_io import make_folder, write_json
from maxup.objectives.shortlist import FirstOrder
from maxup.scoring import allow_variants

PIXEL = 4.0  # about 1 / std: converts a sigma for pixels in [0, 1] to normalized images
IMAGES: dict[str, Callable[[int], Any]] = {
    "Cutout 12": lambda _: Cutout(12),
    "CutMix": lambda num_classes: CutMix(num_classes=num_classes),
    "Gaussian 0.05": lambda _: Gaussian(0.05 * PIXEL),
    "Gaussian 0.25": lambda _: Gaussian(0.25 * PIXEL),
}
PHOTOS = {"CutMix": IMAGES["CutMix"], "Cutout 112": lambda _: Cutout(112), "Cutout 64": lambda _: Cutout(64)}
PHOTOS["Gaussian 0.05"] = IMAGES["Gaussian 0.05"]
HARD = 0.3  # share of the examples whose copies are all scored by "hardest 30 %"


class Scorer:
    """Scores copies of a batch exactly and by cheaper modes.

    Args:
        model: The network.
        perturbation: P(.|x).
        compile: Compile the passes.
    """

    def __init__(self, model: nn.Module, perturbation: Any, *, compile: bool) -> None:
        self.make: Any = partial(torch.compile, dynamic=False) if compile else lambda f: f
        self.model, self.perturbation, self.call = model, perturbation, self.make(model)

    def others(self) -> list[nn.Module]:
        """Return the networks besides the model."""
        return []

    def train_others(self, x: Tensor, y: Tensor) -> None:
        """Train the networks besides the model on a batch."""

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the losses of a batch: (B,)."""
        return smoothed(self.call(x), y)

    def copies(self, batch: Batch, draws: list[Any]) -> Iterator[Batch]:
        """Yield the copies of a batch."""
        return (self.perturbation.apply(batch, draw) for draw in draws)

    def exact(self, batch: Batch, draws: list[Any]) -> Tensor:
        """Score every copy: (m, B)."""
        return torch.stack([self.losses(*copy) for copy in self.copies(batch, draws)])

    def running(self, batch: Batch, draws: list[Any]) -> Tensor:
        """Score every copy with running statistics of BatchNorm."""
        with preserve_state(self.model, batch, norm="running"):
            return self.exact(batch, draws)

    def smaller(self, batch: Batch, draws: list[Any], factor: float, norm: str = "batch") -> Tensor:
        """Score copies with fewer pixels."""
        side = round(batch[0].shape[-1] * factor)
        with preserve_state(self.model, batch, norm=norm):
            return torch.stack([self.losses(F.adaptive_avg_pool2d(x, side), y) for x, y in self.copies(batch, draws)])

    def first_order(self, batch: Batch, draws: list[Any]) -> Tensor:
        """Score copies by the gradient of the loss at the image itself: L(x, y') + <g, x' - x>."""
        losses = FirstOrder(batch, self.call, smoothed)
        return torch.stack([losses(copy) for copy in self.copies(batch, draws)])

    def hardest(self, batch: Batch, draws: list[Any]) -> Tensor:
        """Score all copies of the examples whose first copy has a high loss, and only the first copy of the others."""
        first = self.losses(*self.perturbation.apply(batch, draws[0]))
        hard = first.topk(int(HARD * len(first))).indices
        scores = torch.full((len(draws), len(first)), -torch.inf, device=first.device)
        scores[0] = first
        for row, draw in zip(scores[1:], draws[1:], strict=True):
            x, y = self.perturbation.apply(batch, draw)
            row[hard] = self.losses(x[hard], y[hard])
        return scores

    def modes(self) -> dict[str, Callable[[Batch, list[Any]], Tensor]]:
        """Return the modes that suit the network and the perturbation."""
        return {
            "running statistics": self.running,
            "3/4 of height and width": partial(self.smaller, factor=3 / 4),
            "1/2 of height and width": partial(self.smaller, factor=1 / 2),
            "1/2, running statistics": partial(self.smaller, factor=1 / 2, norm="running"),
            "first order": self.first_order,
            "hardest 30 %": self.hardest,
        }


class SpeedNetScorer(Scorer):
    """Also scores by a small network that trains alongside, and by the deep part of the network alone."""

    model: SpeedNet

    def __init__(self, model: SpeedNet, perturbation: Any, *, compile: bool) -> None:
        super().__init__(model, perturbation, compile=compile)
        self.proxy = channels_last(Proxy())
        self.call_proxy = self.make(self.proxy)
        self.optimizer = torch.optim.AdamW(self.proxy.parameters(), 3e-3, weight_decay=0.05)
        self.first_layer = self.make(lambda x: F.gelu(model.whiten(x)))
        self.first_block = self.make(lambda x: model.blocks[0](F.gelu(model.whiten(x))))
        self.after_layer = self.make(lambda x: head(model, model.blocks(x)))
        self.after_block = self.make(lambda x: head(model, model.blocks[1:](x)))

    def others(self) -> list[nn.Module]:
        return [self.proxy]

    def train_others(self, x: Tensor, y: Tensor) -> None:
        with mixed():
            loss = smoothed(self.call_proxy(x), y).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def by_proxy(self, batch: Batch, draws: list[Any]) -> Tensor:
        """Score copies by the small network."""
        return torch.stack([smoothed(self.call_proxy(x), y) for x, y in self.copies(batch, draws)])

    def split(self, batch: Batch, draws: list[Any], shallow: str, deep: str) -> Tensor:
        """Run the shallow part once, and perturb its output: a box of the image is a box of the features."""
        features = getattr(self, shallow)(batch[0])
        blank = getattr(self, shallow)(torch.zeros_like(batch[0]))[:1].mean((2, 3), keepdim=True)  # of the fill
        scores = []
        for draw in draws:
            y = self.perturbation.apply(batch, draw)[1]
            index = torch.arange(1.0, len(features) + 1, device=features.device).view(-1, 1, 1, 1)
            source = self.perturbation.apply((index.expand(-1, 1, 32, 32), batch[1]), draw)[0]  # 0 where filled
            source = F.interpolate(source, features.shape[2:], mode="nearest-exact")
            own = source == index
            other = features[draw["partner"]] if "partner" in draw else blank
            scores.append(smoothed(getattr(self, deep)(torch.where(own, features, other)), y))
        return torch.stack(scores)

    def modes(self) -> dict[str, Callable[[Batch, list[Any]], Tensor]]:
        found = super().modes() | {"proxy network": self.by_proxy}
        if not isinstance(self.perturbation, Gaussian):  # noise on features is another perturbation
            found["after the first layer"] = partial(self.split, shallow="first_layer", deep="after_layer")
            found["after the first block"] = partial(self.split, shallow="first_block", deep="after_block")
        return found


class ViTScorer(Scorer):
    """Also scores with products in float8, and with fewer patches."""

    model: ViT

    def __init__(self, model: ViT, perturbation: Any, *, compile: bool) -> None:
        super().__init__(model, perturbation, compile=compile)
        self.call_float8 = self.make(lambda x: self.model(x))
        self.call_some = self.make(self.some_patches)

    def float8(self, batch: Batch, draws: list[Any]) -> Tensor:
        """Score copies with the linear layers of the blocks in float8."""
        layers = [layer for layer in self.model.blocks.modules() if isinstance(layer, nn.Linear)]
        for layer in layers:
            layer.__class__ = Float8Linear
        try:
            return torch.stack([smoothed(self.call_float8(x), y) for x, y in self.copies(batch, draws)])
        finally:
            for layer in layers:
                layer.__class__ = nn.Linear

    def some_patches(self, x: Tensor) -> Tensor:
        """Return the logits from half of the patches, as on one color of a checkerboard."""
        model = self.model
        x = model.patches(x)
        rows, pairs = (torch.arange(n, device=x.device) for n in (x.shape[2], x.shape[3] // 2))
        kept = (rows[:, None] * x.shape[3] + 2 * pairs + rows[:, None] % 2).flatten()  # not nonzero, which synchronizes
        tokens = x.flatten(2).transpose(1, 2) + model.position[:, 1:]
        first = (model.token + model.position[:, :1]).expand(len(x), -1, -1)
        return model.head(model.norm(model.blocks(torch.cat([first, tokens[:, kept]], 1)))[:, 0])

    def half_the_patches(self, batch: Batch, draws: list[Any]) -> Tensor:
        """Score copies with half of their patches."""
        return torch.stack([smoothed(self.call_some(x), y) for x, y in self.copies(batch, draws)])

    def modes(self) -> dict[str, Callable[[Batch, list[Any]], Tensor]]:
        found = super().modes()
        del found["running statistics"], found["1/2, running statistics"]  # there is no BatchNorm
        found["half of the patches"] = self.half_the_patches
        if device == "cuda":
            found["float8"] = self.float8
        return found


class Float8Linear(nn.Linear):
    """A linear layer with operands in float8, with a scale per row of the input and per output."""

    def forward(self, input: Tensor) -> Tensor:
        (x, scale), (weight, scales) = to_float8(input.flatten(0, -2)), to_float8(self.weight)
        out = torch._scaled_mm(
            x, weight.t(), scale, scales.t(), bias=self.bias.bfloat16(), out_dtype=torch.bfloat16, use_fast_accum=True
        )
        return out.unflatten(0, input.shape[:-1])


def to_float8(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows in float8 and their scales."""
    scale = (rows.abs().amax(1, keepdim=True).float() / torch.finfo(torch.float8_e4m3fn).max).clamp_min(1e-12)
    return (rows.float() / scale).to(torch.float8_e4m3fn), scale


def head(model: SpeedNet, x: Tensor) -> Tensor:
    """Return the logits of the last feature map."""
    return model.head(F.adaptive_max_pool2d(x, 1).flatten(1)) * LOGIT_SCALE


def kept(scorer: Scorer, batch: Batch, m: int, generator: torch.Generator) -> dict[str, float]:
    """Return the share of the gap that every mode keeps, on one batch."""
    draws = [scorer.perturbation.draw(batch, generator) for _ in range(m)]
    with preserve_state(scorer.model, batch, others=scorer.others()), torch.no_grad(), mixed():
        losses = scorer.exact(batch, draws)
        chosen = {name: mode(batch, draws).argmax(0) for name, mode in scorer.modes().items()}
    fewer = {f"exact, {k} copies": losses[:k].argmax(0) for k in fewer_copies(m)}
    found = {name: compare(losses, copy).gap_kept for name, copy in (fewer | chosen).items()}
    return {name: share for name, share in found.items() if share is not None}


def fewer_copies(m: int) -> list[int]:
    """Return the numbers of copies of the baseline."""
    return [k for k in (2, 3, 4, 8, 12) if k < m]


def load_photos(folder: Path, pixels: int) -> tuple[Tensor, ...]:
    """Training and test images of a folder, of one size, normalized, on the device."""

    def ready(images: Any) -> tuple[Tensor, Tensor]:
        images = replace(images, size=pixels, workers=0)
        parts = list(images.loader(256, device=device, training=False, seed=0))
        x = images.normalize(torch.cat([part[1] for part in parts]))
        return x.contiguous(memory_format=torch.channels_last), torch.cat([part[2] for part in parts])

    train, test = load_data("imagefolder", folder)
    return *ready(train), *ready(test)


def train(scorer: Scorer, data: tuple[Tensor, ...], args: argparse.Namespace) -> dict[str, Any]:
    """Train with MaxUp and exact scoring, and measure what every mode keeps at some points."""
    x, y = data[0], data[1]
    steps = int(args.epochs * (len(x) // args.batch_size))
    at = {round((i + 0.5) * steps / args.points) for i in range(args.points)}
    model, objective = scorer.model, MaxUp(scorer.perturbation, m=args.train_m, loss_fn=smoothed)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer: torch.optim.Optimizer
    if isinstance(scorer, ViTScorer):
        optimizer = torch.optim.AdamW(parameters, lr=args.lr, weight_decay=0.05)
    else:
        optimizer = torch.optim.SGD(parameters, lr=args.lr, momentum=0.9, nesterov=True, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=steps + 1)
    generator, augment = torch.Generator(device).manual_seed(0), CropFlip(padding=x.shape[-1] // 16, flip=False)
    flips = torch.rand(len(x), device=device) < 0.5
    found: dict[str, Any] = {str(m): {} for m in args.ms}
    for step, batch in enumerate(batches(x, y, args.epochs, flips, args.batch_size)):
        batch = augment.apply(batch, augment.draw(batch, generator))
        if step in at:
            for m in args.ms:
                for name, share in kept(scorer, batch, m, generator).items():
                    found[str(m)].setdefault(name, []).append(share)
        with mixed():
            worst = objective.select(scorer.call, *batch)
            loss = scorer.losses(*worst).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        scorer.train_others(*worst)
    model.eval()
    with torch.no_grad(), mixed():
        output = torch.cat([scorer.call(part) for part in data[2].split(args.batch_size)])
    model.train()
    accuracy = float((output.argmax(1) == data[3]).float().mean())
    return {"accuracy": accuracy, "kept": found}


def prices(scorer: Scorer, batch: Batch, ms: list[int], rounds: int) -> dict[str, dict[str, float]]:
    """Return the time of scoring by every mode, relative to a standard training step."""
    captured = device == "cuda"
    optimizer = torch.optim.SGD(scorer.model.parameters(), lr=0.0, momentum=0.9, fused=captured)

    def step() -> None:
        with mixed():
            loss = scorer.losses(*scorer.perturbation(*batch)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def score(mode: Callable[[Batch, list[Any]], Tensor], draws: list[Any]) -> None:
        with preserve_state(scorer.model, batch, others=scorer.others()), torch.no_grad(), mixed():
            mode(batch, draws).argmax(0)

    work: dict[tuple[str, str], Callable[[], None]] = {("standard", ""): step}
    for m in ms:
        draws = [scorer.perturbation.draw(batch, None) for _ in range(m)]
        for k in (*fewer_copies(m), m):
            work[str(m), f"exact, {k} copies"] = partial(score, scorer.exact, draws[:k])
        for name, mode in scorer.modes().items():
            work[str(m), name] = partial(score, mode, draws)
    timed: dict[str, Callable[[], object]] = {
        str(key): capture_graph(action).replay if captured else action for key, action in work.items()
    }
    seconds = interleaved(timed, rounds, device, calls=5 if captured else 1)
    times = {key: sorted(seconds[str(key)])[rounds // 2] for key in work}
    return {
        str(m): {name: seconds / times["standard", ""] for (which, name), seconds in times.items() if which == str(m)}
        for m in ms
    }


def mean_kept(row: dict[str, Any], m: str, mode: str) -> float:
    """Return the mean share over the training. Exact scoring of all copies keeps all of the gap."""
    shares = row["kept"][m].get(mode, [1.0])
    return float(sum(shares) / len(shares))


def plot(result: dict[str, Any], path: Path) -> None:
    """Plot the share of the gap against the cost, one panel per perturbation, for the first m."""
    from matplotlib import pyplot as plt

    found = result["found"]
    figure, panels = plt.subplots(1, len(found), figsize=(4.3 * len(found), 3.6), sharey=True, layout="constrained")
    modes, legend = dict[str, int](), dict[str, Any]()
    for panel, (title, row) in zip(np.atleast_1d(panels), found.items(), strict=True):
        m = next(iter(row["price"]))
        points = {mode: (cost, mean_kept(row, m, mode)) for mode, cost in row["price"][m].items()}
        exact = sorted(point for mode, point in points.items() if mode.startswith("exact"))
        exact.insert(0, (0.0, 0.0))  # m = 1 scores nothing
        legend["exact, fewer copies"] = panel.plot(*zip(*exact, strict=True), "o--", color=COLORS[0])[0]
        others = [mode for mode in points if not mode.startswith("exact")]
        for mode in others:
            i = modes.setdefault(mode, len(modes) + 1)
            color, marker = COLORS[1 + (i - 1) % (len(COLORS) - 1)], MARKERS[i % len(MARKERS)]  # the first is for exact
            legend[mode] = panel.plot(*points[mode], marker, color=color, markersize=8, clip_on=False)[0]
        panel.set(title=f"{title}, m = {m}", xlabel="time of scoring / standard step", ylim=(-0.05, 1.05))
        panel.grid(alpha=0.25)
    np.atleast_1d(panels)[0].set_ylabel("share of the loss gap kept")
    figure.legend(legend.values(), legend.keys(), loc="outside right center", frameon=False)
    save_figure(figure, path, dpi=140)
    plt.close(figure)


def build(args: argparse.Namespace, data: tuple[Tensor, ...], perturbation: Any) -> Scorer:
    """Build a network and its scorer."""
    if args.photos and args.network == "vit":
        return ViTScorer(
            ViT(args.pixels, num_classes=int(data[1].max()) + 1).to(device), perturbation, compile=args.compile
        )
    if args.photos:
        network = create_external("timm/resnet18", shape=data[0].shape[1:], num_classes=int(data[1].max()) + 1)
        return Scorer(channels_last(network), perturbation, compile=args.compile)
    speed = speednet(data[0].shape[1:], 10)
    speed.init_from_images(data[0][:5000])
    channels_last(speed)
    return SpeedNetScorer(speed, perturbation, compile=args.compile)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, help="folder with CIFAR-10, for the network of the speed run")
    source.add_argument("--photos", type=Path, help="folder of photos")
    parser.add_argument("--network", choices=["resnet18", "vit"], default="resnet18", help="for photos")
    parser.add_argument("--pixels", type=int, default=224, help="height and width of photos")
    parser.add_argument("--perturb", nargs="+", choices=[*IMAGES, *PHOTOS], help="default: all for these data")
    parser.add_argument("--epochs", type=float, default=16)
    parser.add_argument("--batch_size", type=int, help="default: 1024, and 64 for photos")
    parser.add_argument("--lr", type=float, help="default: 0.2, and 0.001 for a ViT")
    parser.add_argument("--train_m", type=int, default=4, help="copies in training; 1 is faster")
    parser.add_argument("--points", type=int, default=8, help="measurements along the training")
    parser.add_argument("--ms", nargs="+", type=int, default=[4, 16])
    parser.add_argument("--compile", action="store_true", help="compile the passes")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True, help="result file, or folder for fast_modes-NETWORK.json")
    args = parser.parse_args()
    known = PHOTOS if args.photos else IMAGES
    if unknown := [name for name in args.perturb or known if name not in known]:
        parser.error(f"--perturb {unknown[0]!r} is not for these data; use one of {', '.join(known)}")
    args.lr = args.lr or (0.001 if args.network == "vit" else 0.2)
    args.batch_size = args.batch_size or (64 if args.photos else 1024)
    data = load_photos(args.photos, args.pixels) if args.photos else on_device(*load(args.data))
    allow_variants()
    torch.backends.cudnn.benchmark = True
    network = args.network if args.photos else "speednet"
    path = args.out if args.out.suffix == ".json" else args.out / f"fast_modes-{network}.json"
    make_folder(path.parent)
    settings = {
        "benchmark": "fast_modes",
        "network": network,
        "pixels": data[0].shape[-1],
        "epochs": args.epochs,
        "batch_size": args.batch_size,
        "lr": args.lr,
        "train_m": args.train_m,
        "compile": args.compile,
    }
    found, scorers = dict[str, Any](), dict[str, Scorer]()
    for name in args.perturb or known:
        torch.manual_seed(0)
        scorers[name] = build(args, data, known[name](int(data[1].max()) + 1))
        found[name] = train(scorers[name], data, args)
        write_json(path, settings | {"found": found})  # the most expensive part
    for name, scorer in scorers.items():  # last, because a GPU must be idle for it
        price = prices(scorer, (data[0][: args.batch_size], data[1][: args.batch_size]), args.ms, args.rounds)
        found[name] |= {"price": price}
        write_json(path, settings | {"found": found})
        print(f"{name}: accuracy {found[name]['accuracy']:.4f}")
        for m in args.ms:
            print(f"  m = {m}")
            for mode, cost in price[str(m)].items():
                print(f"    {mode:24} cost {cost:.2f}  keeps {mean_kept(found[name], str(m), mode):.2f}", flush=True)
    result = settings | {"found": found, "environment": environment()}
    write_json(path, result)
    plot(result, path.with_suffix(".png"))


if __name__ == "__main__":
    main()
