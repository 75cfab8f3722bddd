"""The settings of a recipe. The docstring of each field appears in `maxup train --help` and docs/settings.md."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Literal

from maxup.lab.limits import FRACTION, MANY, SEED, Limit

Spec = dict[str, Any]  # {name: ..., arguments}


@dataclass
class Data:
    """The data set and how images are loaded."""

    name: str = "digits"
    """Data set. `maxup data` lists them."""
    root: str | None = None
    """Folder to search first. imagefolder: the folder of images. text: a text file, or a folder of text files."""
    train_size: Annotated[int, Limit(1, 10**9, whole=True)] | None = None
    """Number of training examples, stratified by class. Without a test split, the remaining images are the test set."""
    validation: Annotated[float, Limit(0, 0.9)] = 0.0
    """Fraction of the training examples to hold out for validation."""
    size: Annotated[int, Limit(1, 10**4, whole=True)] = 224
    """Image folders: height and width of training images in pixels."""
    test_size: Annotated[int, Limit(1, 10**4, whole=True)] | None = None
    """Image folders: height and width of images in evaluation. null: the same as size."""
    crop_fraction: Annotated[float, Limit(0.1, 1)] = 0.875
    """Image folders: evaluation resizes the short side to test_size / crop_fraction and takes the center crop."""
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    """Image folders: interpolation mode for resizing."""
    mean: list[Annotated[float, Limit(-1e6, 1e6)]] | None = None
    """Mean per channel of pixels in [0, 1]. null: that of the data set, or usual values for photos in image folders."""
    std: list[Annotated[float, Limit(0, 1e6, above=True)]] | None = None
    """Standard deviation per channel of pixels in [0, 1]. null: as for mean."""
    alternating_flip: bool = False
    """Flip each image horizontally in every other epoch, starting at random. Not for image folders."""
    flip_test: bool = False
    """Also report flip_accuracy: of the average prediction for an image and its mirror image."""
    workers: Annotated[int, Limit(0, 10**3, whole=True)] = 8
    """Image folders: decoding processes per training process, at most one per CPU core."""


@dataclass
class Model:
    """The network."""

    name: str = "mlp"
    """Network. `maxup ls --models` lists them."""
    args: Spec = field(default_factory=dict)
    """Arguments of the network."""
    normalize: bool = False
    """Normalize inside the network, so that augment and perturb get pixels in [0, 1], as certification expects."""
    pretrained: bool = False
    """Start from the published weights of a timm/ or pytorchcv/ network. A last layer of other size is new."""
    weights: str | None = None
    """Start from the weights in this file (safetensors, or a state dict) or in the folder of an exported model."""
    new_head: bool = False
    """With weights: use a new last layer if the number of classes differs."""
    freeze_norm: bool = False
    """Freeze the statistics and the weights of BatchNorm layers."""
    freeze: list[str] = field(default_factory=list)
    """Layers to freeze, by name: their weights and BatchNorm statistics stay fixed, for example [conv, blocks.0]."""


@dataclass
class Optim:
    """The optimizer and its schedule."""

    name: Literal["sgd", "adamw", "asgd"] = "sgd"
    """Optimizer. asgd is SGD with averaged weights, and evaluates the average."""
    lr: Annotated[float, Limit(0, 1e9)] = 0.1
    """Learning rate before schedule and warmup."""
    momentum: Annotated[float, FRACTION] = 0.9
    """Momentum of sgd and asgd."""
    nesterov: bool = False
    """Use Nesterov momentum."""
    weight_decay: Annotated[float, Limit(0, 1e3)] = 1e-4
    """Weight decay."""
    bias_lr: Annotated[float, Limit(0, 1e6, above=True)] = 1.0
    """Factor of the learning rate for biases of normalization layers. Their weight decay is divided by it."""
    label_smoothing: Annotated[float, FRACTION] = 0.0
    """Fraction of each label that is spread evenly over all classes, in training."""
    schedule: Literal["constant", "cosine", "steps", "triangle"] = "cosine"
    """Learning-rate schedule over the run."""
    milestones: list[Annotated[float, FRACTION]] = field(default_factory=lambda: [0.5, 0.75])
    """Schedule steps: fractions of the run at which the learning rate is multiplied by gamma."""
    gamma: Annotated[float, Limit(0, 1e3)] = 0.1
    """Schedule steps: factor at each milestone."""
    peak: Annotated[float, FRACTION] = 0.25
    """Schedule triangle: fraction of the run at which the learning rate reaches lr. It is linear before and after."""
    start_factor: Annotated[float, FRACTION] = 0.0
    """Schedule triangle: factor of the learning rate at the start."""
    end_factor: Annotated[float, FRACTION] = 0.0
    """Schedule triangle: factor of the learning rate at the end."""
    warmup: Annotated[float, FRACTION] = 0.0
    """Fraction of the run in which the learning rate rises linearly from 0."""
    clip: Annotated[float, Limit(0, 1e9, above=True)] | None = None
    """Maximum norm of the gradient. null: no clipping."""
    accumulate: Annotated[int, MANY] = 1
    """Number of batches to accumulate gradients over."""
    sam: Annotated[float, Limit(0, 1e3)] | None = None
    """Radius of sharpness-aware minimization (SAM), for example 0.05. null: no SAM."""
    ema: Annotated[float, Limit(0, 0.999999, above=True)] | None = None
    """Decay of an exponential moving average of the weights, which is then evaluated. null: no average."""
    lookahead: Annotated[int, MANY] | None = None
    """Updates k between steps of lookahead: continue from an average of the weights, with decay 0.95^k (done)^3."""
    average_from: Annotated[float, FRACTION] | None = 0.0
    """Optimizer asgd: fraction of the run at which averaging starts. null: when validation stops improving."""
    patience: Annotated[int, MANY] = 5
    """Optimizer asgd: non-monotone interval in epochs, which decides when validation stops improving."""
    restarts: Annotated[int, Limit(0, 100, whole=True)] = 0
    """Optimizer asgd, schedule constant: number of fine-tuning stages. Each starts from the best epoch so far."""


@dataclass
class LanguageConfig:
    """Settings of the language task."""

    bptt: Annotated[int, MANY] = 70
    """Approximate mean window length in words. The learning rate is scaled by the actual length."""
    epsilon: Annotated[float, Limit(0, 1e3)] = 0.0
    """Adversarial softmax: radius of the ball around the target's word vector, relative to its norm."""
    alpha: Annotated[float, Limit(0, 1e6)] = 2.0
    """Activation regularization (AR): weight of the mean square of the last layer's outputs."""
    beta: Annotated[float, Limit(0, 1e6)] = 1.0
    """Temporal activation regularization (TAR): weight of the mean squared change from word to word."""
    validation_columns: Annotated[int, MANY] = 10
    """Number of columns that the validation text is split into."""
    test_columns: Annotated[int, MANY] = 1
    """Number of columns that the test text is split into."""
    dynamic: bool = False
    """Run dynamic evaluation after training."""


@dataclass
class Recipe:
    """One experiment."""

    task: Literal["vision", "language"] = "vision"
    """Task: vision is classification (of images, rows or token ids); language is language modeling."""
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    augment: list[Spec] = field(default_factory=list)
    """Standard augmentation, drawn once per example."""
    perturb: list[Spec] = field(default_factory=list)
    """P(.|x), drawn once per copy. The objectives adversarial and hard_examples draw it once per example."""
    objective: Spec = field(default_factory=lambda: {"name": "standard"})
    """What training minimizes."""
    language: LanguageConfig = field(default_factory=LanguageConfig)
    optim: Optim = field(default_factory=Optim)
    epochs: Annotated[int, MANY] = 60
    """Number of epochs. With optim.restarts, the maximum per stage."""
    eval_every: Annotated[int, MANY] = 1
    """Number of epochs between evaluations. The last epoch is always evaluated."""
    batch_size: Annotated[int, MANY] = 128
    """Examples per batch, or columns of a text, over all processes."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Mixed precision. In YAML, quote 'no'. fp16 requires a GPU."""
    compile: bool = False
    """Compile the network block by block. GPU only."""
    seed: Annotated[int, SEED] = 0
    """Seed of the split, the initial weights, the order of the examples, and all draws."""


SECTIONS = {one.name for one in fields(Recipe) if is_dataclass(one.default_factory)}


def flat(recipe: Mapping[str, Any], sections: Collection[str] = (*SECTIONS, "objective")) -> dict[str, Any]:
    """Return the settings of a recipe by dotted name. Mappings inside a section, such as model.args, are values."""
    settings: dict[str, Any] = {}
    for key, value in recipe.items():
        if key in sections and not isinstance(value, Mapping):
            raise TypeError(f"{key} of the recipe must be a mapping, but is {value!r:.40}")
        settings |= {f"{key}.{k}": v for k, v in value.items()} if key in sections else {key: value}
    return settings


def gaussian_sigma(recipe: Recipe) -> float | None:
    """Return sigma if the recipe perturbs pixels with Gaussian noise, which certification needs; otherwise None.

    Example:
        >>> gaussian_sigma(Recipe(perturb=[{"name": "gaussian", "sigma": 0.5}])) is None  # noise on normalized images
        True
    """
    match recipe.perturb:
        case [{"name": "gaussian", "sigma": int() | float() as sigma}] if recipe.model.normalize:
            return float(sigma)
    return None


def num_copies(recipe: Recipe) -> int:
    """Return m, the number of copies per example."""
    return int(recipe.objective.get("m", 1))
