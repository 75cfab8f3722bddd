"""Train a small, fast network on CIFAR-10 in a few seconds of one GPU, many times, with and without MaxUp.

    python -m benchmarks.speedrun --data DIR --rows m1 m4 proxy16 --runs 20 --out results

The recipe cifar10/speedrun trains in the same way. This script also has rows that no recipe has, such as a proxy that
scores copies, and it trains many seeds in one process.

One seed takes seconds, so a row has many seeds and a difference of 0.1 points is visible. The network and its training
follow the ideas of public speed records (K. Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU", 2024, and the
work it builds on): a fixed whitening layer, three blocks of convolutions with GELU, BatchNorm with trained biases only,
Nesterov SGD with a triangular schedule, label smoothing, images flipped in every other epoch, and an average of the
weights.

Names of rows:

    m4        4 copies, scored with batch statistics      run4          with running statistics, one compiled pass
    fast4     at half their size                          low4          at 24 x 24 pixels
    proxy4    by a small network trained alongside        m1x2.3        standard training for 2.3 times the epochs
    run4last25, run4first25    m = 4 in the last or first 25 % of the steps, otherwise m = 1
"""

import argparse
import json
import re
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maxup import Compose, CropFlip, CutMix, Cutout, Gaussian, MaxUp, captured
from maxup.lab.data import load_data
from maxup.lab.environment import environment
from maxup.lab.models.speednet import speednet

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
BATCH, SMOOTHING = 1024, 0.2
LR, MOMENTUM, DECAY, BIAS_LR = 11.5, 0.85, 0.0153, 64.0  # per 1,024 examples, "decoupled" from momentum
device = "cuda" if torch.cuda.is_available() else "cpu"


def mixed() -> torch.autocast:
    """Mixed precision on a GPU."""
    return torch.autocast(device, torch.bfloat16, enabled=device == "cuda")


class Proxy(nn.Module):
    """A network of a few percent of the cost that scores copies for the large one."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs, stride in ((3, width, 2), (width, 2 * width, 1), (2 * width, 4 * width, 2)):
            layers += [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * width * 16, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def channels_last(model: nn.Module) -> nn.Module:
    """Move a network to the device, in the memory format that its convolutions prefer."""
    return model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def smoothed(output: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy with label smoothing per example, for class ids and for probabilities."""
    return F.cross_entropy(output.float(), target, label_smoothing=SMOOTHING, reduction="none")


def load(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test images, normalized, on the device."""
    train, test = load_data("cifar10", folder)
    mean, std = (torch.tensor(v, device=device).view(1, 3, 1, 1) for v in (MEAN, STD))

    def ready(images: Tensor) -> Tensor:
        x = (images.to(device).float() / 255 - mean) / std
        return x.contiguous(memory_format=torch.channels_last)

    return ready(train.x), train.y.to(device).long(), ready(test.x), test.y.to(device).long()


def batches(x: Tensor, y: Tensor, epochs: float, flips: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Shuffled batches; an image is flipped in every other epoch, beginning at random."""
    total, done, epoch = int(epochs * (len(x) // BATCH)), 0, 0
    while done < total:
        order = torch.randperm(len(x), device=device)
        for rows in order.split(BATCH)[: min(len(x) // BATCH, total - done)]:
            images = x[rows]
            flip = flips[rows] ^ (epoch % 2 == 1)
            yield torch.where(flip.view(-1, 1, 1, 1), images.flip(-1), images), y[rows]
            done += 1
        epoch += 1


PERTURBATIONS: dict[str, Callable[[], Any]] = {
    "cutout": lambda: Cutout(12),
    "cutmix": lambda: CutMix(num_classes=10),
    "gaussian": lambda: Gaussian(0.25),
    "translate": lambda: Compose(CropFlip(padding=2), Cutout(12)),
}


class Run:
    """One training: a network, its optimizer and schedule, and how copies are selected."""

    def __init__(
        self, data: tuple[Tensor, ...], row: str, epochs: float, perturb: str, compiled: dict[str, Any]
    ) -> None:
        self.data = data
        parsed = re.fullmatch(r"(m|run|fast|proxy|low)(\d+)(?:(first|last)(\d+))?(?:x([\d.]+))?", row)
        if parsed is None:
            raise SystemExit(f"row {row!r} is not known; use m4, run4, fast4, proxy16, low4, run4last25, or m1x2")
        kind, copies, part, percent, factor = parsed.groups()
        self.kind, self.m, self.epochs = kind, int(copies), epochs * float(factor or 1)
        network = speednet(data[0].shape[1:], 10)
        network.init_from_images(data[0][:5000])
        model = channels_last(network)
        self.model = compiled.setdefault("model", model)
        if self.model is not model:
            self.model.load_state_dict(model.state_dict())
            for p in self.model.parameters():
                p.grad = None
        if "call" not in compiled:
            compiled["call"] = torch.compile(self.model) if device == "cuda" else self.model
        self.call = compiled["call"]
        steps = int(self.epochs * (len(data[0]) // BATCH))

        def m(step: int) -> int:
            share = 100 * step / steps
            inside = part is None or (share < int(percent) if part == "first" else share >= 100 - int(percent))
            return self.m if inside else 1

        self.objective = compiled.setdefault(row, MaxUp(PERTURBATIONS[perturb](), loss_fn=smoothed))
        self.objective.m, self.objective.step = m, 0
        self.objective.load_state_dict({"seed": int(torch.randint(2**31, ())), "step": 0})
        if kind == "run":
            self.objective.norm, self.objective.chunk_size = "running", self.m
            self.objective.compile = device == "cuda"
        self.objective.fast = kind == "fast"
        if kind == "low":
            self.objective.forward = lambda model, x: model(F.interpolate(x, (24, 24), mode="bilinear", antialias=True))
        self.augment = CropFlip(padding=2, flip=False)
        self.proxy: nn.Module | None = None
        if kind == "proxy":
            self.objective.norm, self.objective.chunk_size = "running", self.m
            proxy = channels_last(Proxy())
            self.proxy = compiled.setdefault("proxy", proxy)
            if self.proxy is not proxy:
                self.proxy.load_state_dict(proxy.state_dict())
            if "proxy_call" not in compiled:
                compiled["proxy_call"] = torch.compile(self.proxy) if device == "cuda" else self.proxy
            self.proxy_call = compiled["proxy_call"]

    def optimizer(self) -> torch.optim.SGD:
        kilo = 1024 * (1 + 1 / (1 - MOMENTUM))
        rate, decay = LR / kilo, DECAY * BATCH / kilo
        groups: dict[str, list[nn.Parameter]] = {"whiten": [], "bias": [], "weight": []}
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                groups["whiten" if "whiten" in name else "bias" if "bias" in name else "weight"].append(parameter)
        rates = {"whiten": rate, "bias": rate * BIAS_LR, "weight": rate}
        settings = [{"params": groups[n], "lr": rates[n], "weight_decay": decay / rates[n]} for n in groups]
        return torch.optim.SGD(settings, momentum=MOMENTUM, nesterov=True, fused=True)

    def train(self) -> dict[str, float]:
        x, y, xt, yt = self.data
        per_epoch = len(x) // BATCH
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
                batch = self.objective.select(self.call if self.proxy is None else self.proxy_call, images, labels)
                loss = smoothed(self.call(batch[0]), batch[1]).sum()
                if self.proxy is not None:
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
        for number, batch in enumerate(batches(x, y, self.epochs, flips)):
            train_step(*self.augment.apply(batch, self.augment.draw(batch, generator)))
            schedule.step()
            if number % 5 == 4:
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
        self.model.train()
        return {
            "seconds": seconds,
            "accuracy": 100 * float((plain.argmax(1) == yt).float().mean()),
            "accuracy_flip": 100 * float(((plain.softmax(1) + flipped.softmax(1)).argmax(1) == yt).float().mean()),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with CIFAR-10")
    parser.add_argument("--rows", nargs="+", default=["m1", "m4", "proxy16"])
    parser.add_argument("--perturb", choices=PERTURBATIONS, default="cutout")
    parser.add_argument("--epochs", type=float, default=16)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after this time")
    parser.add_argument("--out", type=Path, help="folder for speedrun-<perturb>.json")
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    data, compiled, begun = load(args.data), dict[str, Any](), time.perf_counter()
    rows: dict[str, list[dict[str, float]]] = {row: [] for row in args.rows}
    for row in rows:  # compile and warm up
        torch.manual_seed(0)
        Run(data, row, 0.5, args.perturb, compiled).train()
    print(f"warmed up in {time.perf_counter() - begun:.0f} s", flush=True)
    for seed in range(args.runs):
        for row, found in rows.items():
            if time.perf_counter() - begun < args.seconds:
                torch.manual_seed(seed)
                found.append({"seed": seed} | Run(data, row, args.epochs, args.perturb, compiled).train())
    for row, found in rows.items():
        if len(found) > 1:
            columns = [[run[key] for run in found] for key in ("seconds", "accuracy", "accuracy_flip")]
            show = [f"{statistics.mean(c):.3f} ± {statistics.stdev(c) / len(c) ** 0.5:.3f}" for c in columns]
            print(f"{row:>10} n={len(found)} seconds {show[0]}  accuracy {show[1]}  with flip {show[2]}", flush=True)
    if args.out:
        result = {"benchmark": "speedrun", "epochs": args.epochs, "perturb": args.perturb, "rows": rows}
        path = args.out / f"speedrun-{args.perturb}.json"
        path.write_text(json.dumps(result | {"environment": environment()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
