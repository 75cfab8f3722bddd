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
    size: int = 224
    """Of image folders: height and width of a training image."""
    test_size: int | None = None
    """Of image folders: height and width in evaluation; default as in training. FixRes evaluates larger ones."""
    crop_fraction: float = 0.875
    """Of image folders: evaluation resizes the short side to test_size / crop_fraction, then crops the center."""
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    """Of image folders: how images are resized."""
    mean: list[float] | None = None
    """Mean of each channel, of pixels in [0, 1]; default the data set's own, of image folders ImageNet's."""
    std: list[float] | None = None
    """Standard deviation of each channel, likewise."""
    workers: int = 8
    """Of image folders: processes that decode, for each training process; never more than there are cores."""


@dataclass
class Model:
    """Which network."""

    name: str = "mlp"
    """Model: see `maxup ls --models`."""
    args: Spec = field(default_factory=dict)
    """Its arguments."""
    normalize: bool = False
    """Normalize inside the network: augmentation and perturbation then see pixels in [0, 1], as certification wants."""
    pretrained: bool = False
    """Begin with the published weights of a timm/... or pytorchcv/... network; a last layer of other classes is new."""
    weights: str | None = None
    """Begin with the weights in this file: safetensors, or a state dict that torch.load reads with weights_only."""
    new_head: bool = False
    """Of weights: begin with a new last layer where the file's has another number of classes."""
    freeze_norm: bool = False
    """Leave BatchNorm as it is: neither its statistics nor its weights change in training."""


@dataclass
class Optim:
    """How weights are updated."""

    name: Literal["sgd", "adamw", "asgd"] = "sgd"
    """Optimizer; "asgd" is SGD whose weights are averaged, and the average is what is evaluated."""
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
    sam: float | None = None
    """Radius of sharpness-aware minimization, such as 0.05: the gradient is taken at the worst weights that near."""
    ema: float | None = None
    """Decay of an exponential moving average of the weights, which is then what is evaluated; default none."""
    average_from: float | None = 0.0
    """Of "asgd": fraction of the epochs after which averaging begins; null, when validation no longer improves."""
    patience: int = 5
    """Of "asgd": it no longer improves where an epoch is worse than the best of all but the last so many."""
    restarts: int = 0
    """Of "asgd": fine-tuning stages, each from the best point so far, until validation no longer improves."""


@dataclass
class LanguageConfig:
    """Settings of language models."""

    bptt: int = 70
    """Words of a window, nearly; the learning rate is scaled by its length."""
    epsilon: float = 0.0
    """Of the adversarial softmax: radius of the ball about the target's word vector, in lengths of it."""
    alpha: float = 2.0
    """Weight of the mean square of the last layer's states."""
    beta: float = 1.0
    """Weight of the mean square of their change from word to word."""
    validation_columns: int = 10
    """Columns the validation text is read in."""
    test_columns: int = 1
    """Columns the test text is read in."""
    dynamic: bool = False
    """End with dynamic evaluation."""


@dataclass
class Recipe:
    """One experiment."""

    task: Literal["vision", "language"] = "vision"
    """Images with classes, or text."""
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    augment: list[Spec] = field(default_factory=list)
    """Standard augmentation, drawn once for every example: a list of {name: ..., arguments}."""
    perturb: list[Spec] = field(default_factory=list)
    """P(.|x), the augmentation under study, redrawn for every copy; "adversarial" and "hard_examples" draw it once."""
    objective: Spec = field(default_factory=lambda: {"name": "standard"})
    """What is minimized: {name: ..., arguments}; "standard" is maxup with m = 1."""
    language: LanguageConfig = field(default_factory=LanguageConfig)
    optim: Optim = field(default_factory=Optim)
    epochs: int = 60
    """Passes over the training examples; with optim.restarts, the most passes of every stage."""
    batch_size: int = 128
    """Examples of a batch, or columns of a text, over all processes."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Mixed precision; "fp16" needs a GPU."""
    compile: bool = False
    """On a GPU, compile the network, block by block."""
    seed: int = 0
    """Decides the split, the weights, the order and the draws."""


def noise_of(recipe: Recipe) -> float | None:
    """The sigma of a recipe whose perturbation is Gaussian noise on pixels, which is what certification smooths with.

    Example:
        >>> noise_of(Recipe(perturb=[{"name": "gaussian", "sigma": 0.5}])) is None  # of normalized images
        True
    """
    match recipe.perturb:
        case [{"name": "gaussian", "sigma": int() | float() as sigma}] if recipe.model.normalize:
            return float(sigma)
    return None


def copies_of(recipe: Recipe) -> int:
    """m, the copies per example that the objective draws.

    Example:
        >>> copies_of(Recipe()), copies_of(Recipe(objective={"name": "maxup", "m": 4}))
        (1, 4)
    """
    return int(recipe.objective.get("m", 1))
