"""What a recipe may say: every field with its meaning and default."""

from dataclasses import dataclass, field
from typing import Any, Literal

Spec = dict[str, Any]


@dataclass
class Data:
    """Which examples."""

    name: str = "digits"
    """Data set: see `maxup data`."""
    root: str | None = None
    """Folder to look in first."""
    train_size: int | None = None
    """Train on this many examples, class proportions kept, chosen by the seed; default all."""
    validation: float = 0.0
    """Fraction of the training examples held out for validation, chosen by the seed."""


@dataclass
class Model:
    """Which network."""

    name: str = "mlp"
    """Model: see `maxup ls --models`."""
    args: Spec = field(default_factory=dict)
    """Its arguments."""
    normalise: bool = False
    """Normalise inside the network: augmentation and perturbation then see pixels in [0, 1], as certification wants."""


@dataclass
class Optim:
    """How weights are updated."""

    name: Literal["sgd", "adamw", "asgd"] = "sgd"
    """Optimiser."""
    lr: float = 0.1
    """Learning rate at the start."""
    momentum: float = 0.9
    """Momentum of SGD."""
    nesterov: bool = False
    """Nesterov's momentum."""
    weight_decay: float = 1e-4
    """Weight decay."""
    schedule: Literal["constant", "cosine", "steps"] = "cosine"
    """Shape of the learning rate over the epochs."""
    milestones: list[float] = field(default_factory=lambda: [0.5, 0.75])
    """Of "steps": fractions of the epochs at which the rate is multiplied by gamma."""
    gamma: float = 0.1
    """Of "steps": the factor."""
    warmup: float = 0.0
    """Fraction of the epochs over which the rate rises from 0."""
    clip: float | None = None
    """Largest gradient norm; default no limit."""
    accumulate: int = 1
    """Batches whose gradients are added up before a step."""
    ema: float | None = None
    """Decay of an exponential moving average of the weights, which is then what is evaluated; default none."""


@dataclass
class MaxUpKnobs:
    """The method's own settings."""

    m: int = 4
    """Copies of every example."""
    warmup: int = 5
    """Epochs with m = 1 at the start, the paper's 5; a shorter run has as many, but at most a quarter of its epochs."""
    norm: Literal["batch", "running"] = "batch"
    """Statistics BatchNorm scores with."""
    strategy: Literal["recompute", "retain"] = "recompute"
    """Forward the winners again, or keep all graphs."""
    chunk: int = 1
    """Copies scored in one forward pass."""
    rank: Literal["loss", "kl"] = "loss"
    """How copies are compared."""


@dataclass
class AdversarialKnobs:
    """Settings of PGD adversarial training."""

    radius: float = 0.5
    """Radius of the ball, in units of the normalised input."""
    p: float = 2
    """2, or .inf."""
    steps: int = 10
    """Gradient steps of the attack."""


@dataclass
class SmoothAdvKnobs:
    """Settings of SmoothAdv, adversarial training of the smoothed classifier; its noise is what perturb says."""

    radius: float = 0.5
    """Radius of the l2 ball, in units of the input."""
    attack: Literal["pgd", "ddn"] = "pgd"
    """Climb within the ball, or look for the shortest perturbation that changes the answer."""
    steps: int = 10
    """Gradient steps of the attack."""
    samples: int = 1
    """Noises of every example, which the attack averages over and training is on."""
    warmup: int = 10
    """Epochs over which the radius rises; a shorter run has as many, but at most a quarter of its epochs."""


@dataclass
class Recipe:
    """One experiment."""

    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    augment: list[Spec] = field(default_factory=list)
    """Standard augmentation, drawn once for every example: a list of {name: ..., arguments}."""
    perturb: list[Spec] = field(default_factory=list)
    """P(.|x), the augmentation under study, redrawn for every copy."""
    objective: Literal["standard", "maxup", "average", "adversarial", "hard_examples", "smoothadv"] = "standard"
    """What is minimised; "standard" is maxup with m = 1."""
    maxup: MaxUpKnobs = field(default_factory=MaxUpKnobs)
    adversarial: AdversarialKnobs = field(default_factory=AdversarialKnobs)
    smoothadv: SmoothAdvKnobs = field(default_factory=SmoothAdvKnobs)
    hard_fraction: float = 0.25
    """Of "hard_examples": the fraction of a batch trained on."""
    optim: Optim = field(default_factory=Optim)
    epochs: int = 60
    """Passes over the training examples."""
    batch_size: int = 128
    """Examples of a batch, over all processes."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Mixed precision."""
    compile: bool = False
    """On a GPU, compile the network, block by block."""
    seed: int = 0
    """Decides the split, the weights, the order and the draws."""


def noise_of(recipe: Recipe) -> float | None:
    """The sigma of a recipe whose perturbation is Gaussian noise on pixels, which is what certification smooths with.

    Example:
        >>> noise_of(Recipe(perturb=[{"name": "gaussian", "sigma": 0.5}])) is None  # of normalised images
        True
    """
    match recipe.perturb:
        case [{"name": "gaussian", "sigma": int() | float() as sigma}] if recipe.model.normalise:
            return float(sigma)
    return None
