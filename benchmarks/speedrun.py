"""Train a small, fast network on CIFAR-10 in a few seconds of one GPU, many times, with and without MaxUp.

    python -m benchmarks.speedrun --data DIR --rows m1 m1x1.5 run4last50 --epochs 30 --out results/speedrun.json

The recipe cifar10/speedrun trains in the same way. This script also has rows that no recipe has, such as a proxy that
scores copies, and it trains many seeds in one process. It writes its results after every run. Started again with the
same file and commit, it trains what is missing. With --images, a seed also chooses the training images.

One seed takes seconds, so a row has many seeds and a difference of 0.1 points is visible. The network and its training
follow the ideas of public speed records (K. Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", 2024, and the
work it builds on): a fixed whitening layer, three blocks of convolutions with GELU, BatchNorm with trained biases only,
Nesterov SGD with a triangular schedule, label smoothing, images flipped in every other epoch, and an average of the
weights.

Names of rows:

    m4        4 copies, scored with batch statistics      run4          with running statistics, one compiled pass
    low4      at 24 x 24 pixels                           proxy4        by a small network trained alongside
    easy4     like run4, but the copy with the lowest loss
    avg4      the average over 4 copies                   m1x2.3        standard training for 2.3 times the epochs
    run4last25, run4first25    m = 4 in the last or first 25 % of the steps, otherwise m = 1
    fast4     4 copies with `fast=True`
    m1xR      standard training for the time of the row before it, by the median seconds of seeds 0 and 1
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.robust_images import RobustImages
from benchmarks.speedrun_rows import (
    EQUAL_TIME,
    OBJECTIVES,
    PERTURBATIONS,
    Proxy,
    Row,
    check_equal_time,
    device,
    equal_time,
    smoothed,
)
from maxup import Average, CropFlip, captured
from maxup.cli.parser import check_writable
from maxup.errors import CheckpointError, RunError
from maxup.lab.data import load_data
from maxup.lab.environment import environment
from maxup.lab.models.speednet import speednet
from maxup.lab.storage.atomic_io import read_json, write_json
from maxup.lab.storage.locks import locked
from maxup.perturb.base import constant
from maxup.rng import make_generator
from maxup.scoring import allow_variants

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
LR, MOMENTUM, DECAY, BIAS_LR = 11.5, 0.85, 0.0153, 64.0  # per 1,024 examples, "decoupled" from momentum


SETTINGS = ("epochs", "perturb", "widths", "depth", "lr", "held_out", "images", "batch", "robustness")  # of a file


def mixed() -> torch.autocast:
    """Mixed precision on a GPU."""
    return torch.autocast(device, torch.bfloat16, enabled=device == "cuda")


def channels_last(model: nn.Module) -> nn.Module:
    """Move a network to the device, in the memory format that its convolutions prefer."""
    return model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def load(folder: Path, held_out: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test images as bytes, with labels. The last `held_out` training images are the test images."""
    train, test = load_data("cifar10", folder)
    if held_out:
        train, test = train.subset(range(len(train) - held_out)), train.subset(range(len(train) - held_out, len(train)))
    return train.x, train.y.long(), test.x, test.y.long()


def normalize(pixels: Tensor) -> Tensor:
    """Return the input of a network for pixels in [0, 1]."""
    mean, std = (constant(v, pixels.device).view(1, 3, 1, 1) for v in (MEAN, STD))
    return ((pixels - mean) / std).contiguous(memory_format=torch.channels_last)


def on_device(x: Tensor, y: Tensor, xt: Tensor, yt: Tensor) -> tuple[Tensor, ...]:
    """Return training and test images with their labels, normalized, on the device."""
    x, xt = (normalize(images.to(device) / 255) for images in (x, xt))
    return x, y.to(device), xt, yt.to(device)


def choose(y: Tensor, count: int, seed: int) -> Tensor:
    """Return the indices of `count` random images, the same number of every class."""
    order = torch.randperm(len(y), generator=make_generator("speedrun images", seed)).to(y.device)
    chosen = torch.cat([order[y[order] == label][: count // 10] for label in range(10)])
    if len(chosen) != count or count < 10:
        raise SystemExit(f"--images must be a multiple of 10, and at most 10 times the smallest class; it is {count}")
    return chosen[torch.randperm(count, generator=make_generator("speedrun order", seed)).to(y.device)]


def batches(x: Tensor, y: Tensor, epochs: float, flips: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Shuffled batches; an image is flipped in every other epoch, beginning at random."""
    total, done, epoch = int(epochs * (len(x) // size)), 0, 0
    while done < total:
        order = torch.randperm(len(x), device=device)
        for rows in order.split(size)[: min(len(x) // size, total - done)]:
            images = x[rows]
            flip = flips[rows] ^ (epoch % 2 == 1)
            yield torch.where(flip.view(-1, 1, 1, 1), images.flip(-1), images), y[rows]
            done += 1
        epoch += 1


def reuse(compiled: dict[str, Any], name: str, fresh: nn.Module) -> tuple[nn.Module, Any]:
    """Return the network that this process has compiled, with new weights, and its compiled call."""
    if name not in compiled:
        compiled[name] = fresh, torch.compile(fresh, dynamic=False) if device == "cuda" else fresh
    model, call = compiled[name]
    if model is not fresh:
        model.load_state_dict(fresh.state_dict())
        model.zero_grad()
    return model, call


class Run:
    """One training: a network, its optimizer and schedule, and how copies are selected.

    Args:
        data: Training and test images with their labels, normalized, on the device.
        name: Name of the row.
        args: The options of the command.
        epochs: Epochs of a row without a factor.
        compiled: What is built once per process. A new run gives the same network new weights, because compiling takes
            longer than training.
        seed: Chooses the training images, if `args.images` is set.
    """

    def __init__(
        self, data: tuple[Tensor, ...], name: str, args: argparse.Namespace, epochs: float, compiled: dict[str, Any],
        seed: int = 0,
    ) -> None:  # fmt: skip
        if args.images:
            rows = choose(data[1], args.images, seed)
            data = data[0][rows], data[1][rows], *data[2:]
        self.data, self.lr, self.batch, row = data, args.lr, args.batch, Row.parse(name)
        self.epochs = epochs * row.factor
        network = speednet(data[0].shape[1:], 10, args.widths, args.depth)
        network.init_from_images(data[0][:5000])
        self.model, self.call = reuse(compiled, "model", channels_last(network))
        steps = int(self.epochs * (len(data[0]) // self.batch))
        if steps < 1:
            what = f"{self.epochs:g} epochs of {len(data[0])} images in batches of {self.batch}"
            raise SystemExit(f"row {name}: {what} are less than one step; use more --epochs or a smaller --batch")
        if name not in compiled:
            compiled[name] = OBJECTIVES[row.kind](PERTURBATIONS[args.perturb](), loss_fn=smoothed)
        self.objective = compiled[name]
        self.objective.m = partial(row.copies, steps=steps)
        self.objective.load_state_dict({"seed": int(torch.randint(2**31, ())), "step": 0})
        self.augment = CropFlip(padding=2, flip=False)
        self.proxy, self.proxy_call = None, None
        if row.kind == "proxy":
            self.proxy, self.proxy_call = reuse(compiled, "proxy", channels_last(Proxy()))

    def optimizer(self) -> torch.optim.SGD:
        kilo = 1024 * (1 + 1 / (1 - MOMENTUM))
        rate, decay = self.lr / kilo, DECAY * self.batch / kilo
        groups: dict[str, list[nn.Parameter]] = {"whiten": [], "bias": [], "weight": []}
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                groups["whiten" if "whiten" in name else "bias" if "bias" in name else "weight"].append(parameter)
        rates = {"whiten": rate, "bias": rate * BIAS_LR, "weight": rate}
        settings = [{"params": groups[n], "lr": rates[n], "weight_decay": decay / rates[n]} for n in groups]
        return torch.optim.SGD(settings, momentum=MOMENTUM, nesterov=True, fused=True)

    def train(self) -> dict[str, Any]:
        """Train and test. The curve is the mean training loss of every epoch."""
        x, y, xt, yt = self.data
        per_epoch = len(x) // self.batch
        steps = int(self.epochs * per_epoch)
        flips = torch.rand(len(x), device=device) < 0.5
        optimizer = self.optimizer()
        peak = int(0.23 * steps)

        def triangle(step: int) -> float:
            return 0.2 + 0.8 * step / max(peak, 1) if step < peak else 1 - 0.93 * (step - peak) / max(steps - peak, 1)

        def first_epochs(step: int) -> float:  # the bias of the whitening layer
            return triangle(step) if step < 3 * per_epoch else 0.0

        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, [first_epochs, triangle, triangle])
        weights = [v for v in self.model.state_dict().values() if v.is_floating_point()]
        slow = [w.clone() for w in weights]
        if self.proxy is not None:
            proxy_optimizer = torch.optim.AdamW(
                self.proxy.parameters(),
                torch.tensor(3e-3, device=device),
                weight_decay=0.05,
                fused=True,
                capturable=True,
            )

        def step(images: Tensor, labels: Tensor) -> Tensor:
            with mixed():
                if isinstance(self.objective, Average):
                    loss = self.objective(self.call, images, labels) * len(images)
                else:
                    scorer = self.call if self.proxy_call is None else self.proxy_call
                    batch = self.objective.select(scorer, images, labels)
                    loss = smoothed(self.call(batch[0]), batch[1]).sum()
                if self.proxy_call is not None:
                    smoothed(self.proxy_call(batch[0]), batch[1]).mean().backward()
                    proxy_optimizer.step()
                    proxy_optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        self.model.train()
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        train_step = captured(step, self.objective, optimizer)
        generator = torch.Generator(device).manual_seed(int(torch.randint(2**31, ())))
        losses: list[Tensor] = []
        for number, batch in enumerate(batches(x, y, self.epochs, flips, self.batch)):
            losses.append(train_step(*self.augment.apply(batch, self.augment.draw(batch, generator))))
            schedule.step()
            if number % 5 == 4:  # lookahead
                decay = 0.95**5 * (number / steps) ** 3
                torch._foreach_lerp_(slow, weights, 1 - decay)
                torch._foreach_copy_(weights, slow)
        torch._foreach_copy_(weights, slow)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        self.model.eval()
        with torch.no_grad(), mixed():
            plain = torch.cat([self.call(part).float() for part in xt.split(2000)])
            flipped = torch.cat([self.call(part.flip(-1)).float() for part in xt.split(2000)])
        curve = [float(part.mean()) / self.batch for part in torch.stack(losses).float().split(per_epoch)]
        return {
            "seconds": seconds,
            "curve": [round(loss, 4) for loss in curve],
            "accuracy": 100 * float((plain.argmax(1) == yt).float().mean()),
            "accuracy_flip": 100 * float(((plain.softmax(1) + flipped.softmax(1)).argmax(1) == yt).float().mean()),
        }


def resume(path: Path | None, settings: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the runs of a result file, which must have the same settings and the same commit."""
    if path is None or not path.exists():
        return {}
    try:
        found = read_json(path, most=1 << 28)
        about = {key: found.get(key) for key in settings}, found["environment"]["commit"]
    except (ValueError, AttributeError, LookupError):
        raise SystemExit(f"{path} is not a result of this script; choose another --out") from None
    commit = environment()["commit"]
    if about != (settings, commit) or str(commit).endswith("+"):
        raise SystemExit(f"{path} has other settings, or is not of the clean commit {commit}; choose another --out")
    rows: dict[str, list[dict[str, Any]]] = found["rows"]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-10")
    parser.add_argument("--rows", nargs="+", default=["m1", "m4", "proxy16"])
    parser.add_argument("--perturb", choices=PERTURBATIONS, default="cutout")
    parser.add_argument("--epochs", type=float, default=16)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 256, 256])
    parser.add_argument("--depth", type=int, default=2, help="convolutions per block")
    parser.add_argument("--lr", type=float, default=LR, help="per 1,024 examples")
    parser.add_argument("--held_out", type=int, default=0, metavar="N", help="test on the last N training images")
    parser.add_argument("--images", type=int, default=0, metavar="N", help="train on N images, chosen by the seed")
    parser.add_argument("--batch", type=int, default=1024, help="examples per batch")
    parser.add_argument("--robustness", action="store_true", help="also test on corrupted and attacked images")
    parser.add_argument("--runs", type=int, default=20, help="seeds 0, 1, ... of every row")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no run after this time")
    parser.add_argument("--out", type=Path, help="result file")
    args = parser.parse_args()
    for name in args.rows:  # before anything is compiled
        if name != EQUAL_TIME:
            Row.parse(name)
    check_equal_time(args.rows, args.runs)
    try:
        if args.out:
            check_writable(args.out)
        with locked(args.out.parent, args.out.name) if args.out else nullcontext():
            run_rows(args)
    except (RunError, CheckpointError) as error:
        raise SystemExit(str(error)) from None


def run_rows(args: argparse.Namespace) -> None:
    """Train every seed of every row that the result file does not have, and print a table."""
    named = [name for name in args.rows if name != EQUAL_TIME]
    settings = {"benchmark": "speedrun"} | {name: getattr(args, name) for name in SETTINGS}
    rows = {name: list[dict[str, Any]]() for name in named} | resume(args.out, settings)
    torch.backends.cudnn.benchmark = True
    allow_variants()
    images = load(args.data, args.held_out)
    data, robust = on_device(*images), RobustImages(*images[2:], normalize, device) if args.robustness else None
    compiled, begun = dict[str, Any](), time.perf_counter()
    for name in named:  # compile and warm up
        torch.manual_seed(0)
        Run(data, name, args, min(args.epochs, 2), compiled).train()
    print(f"warmed up in {time.perf_counter() - begun:.0f} s", flush=True)
    first = [(seed, name) for seed in range(min(args.runs, 2)) for name in named]  # whose times set m1xR
    for seed, name in first + [(seed, name) for seed in range(args.runs) for name in args.rows]:
        if name == EQUAL_TIME:
            name = equal_time(rows, args.rows[args.rows.index(name) - 1])
            rows.setdefault(name, [])
        if seed in [run["seed"] for run in rows[name]]:
            continue
        if time.perf_counter() - begun > args.seconds:
            break
        torch.manual_seed(seed)
        run = Run(data, name, args, args.epochs, compiled, seed)
        found = {"seed": seed} | run.train()
        if robust is not None:
            with mixed():
                found |= robust.measure(run.call, run.model)
        rows[name].append(found)
        if args.out:
            write_json(args.out, settings | {"rows": rows, "environment": environment()})
    for name, runs in rows.items():
        if len(runs) > 1:
            columns = [[one[key] for one in runs] for key in ("seconds", "accuracy", "accuracy_flip")]
            show = [f"{statistics.mean(c):.3f} ± {statistics.stdev(c) / len(c) ** 0.5:.3f}" for c in columns]
            print(f"{name:>10} n={len(runs)} seconds {show[0]}  accuracy {show[1]}  with flip {show[2]}", flush=True)


if __name__ == "__main__":
    main()
