"""Language modeling: text, model, training step and evaluation of a recipe."""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from maxup.errors import MaxUpWarning, RecipeError, RunError
from maxup.lab.data import load_data
from maxup.lab.data.text import Text
from maxup.lab.data.user_text import from_user_text
from maxup.lab.data.windows import Windows
from maxup.lab.models import build_registered
from maxup.lab.models.awd_lstm import Hidden, LSTMOutput, adversarial_scores
from maxup.lab.recipes.build import build_perturbation
from maxup.lab.recipes.load import reject_settings
from maxup.lab.recipes.objectives import ObjectiveContext, build_objective
from maxup.lab.recipes.schema import Recipe
from maxup.lab.registry import LANGUAGE_MODELS
from maxup.lab.user_code import function_name
from maxup.objectives.maxup import MaxUp
from maxup.objectives.outcome import Outcome
from maxup.perturb.in_model import in_model_parts
from maxup.rng import stream_seed

Batch = tuple[Tensor, Tensor, Tensor]  # positions, tokens, targets

FOR_IMAGES = (
    "data.train_size", "data.validation", "data.size", "data.test_size", "data.crop_fraction", "data.interpolation",
    "data.mean", "data.std", "data.alternating_flip", "data.flip_test", "model.normalize", "model.pretrained",
    "model.weights", "model.new_head", "model.freeze_norm", "model.freeze", "objective.norm", "objective.score",
    "optim.sam", "optim.label_smoothing",
)  # fmt: skip  # settings that are not used here


class Language:
    """The text, the model and the objective of a recipe. `maxup.lab.tasks` describes the interface.

    The detached hidden state of the worst copies carries over to the next window, column by column.

    Args:
        world_size: Number of processes that share the columns.
        data_from: Returns the text instead of the recipe's.
        model_from: Must be None: only the recipe's network reads text.
    """

    monitor, lower_is_better, unit = "perplexity", True, "tokens"
    every_epoch = ("validation",)  # the test text is evaluated once, at the end
    seed_selects_data = False

    def __init__(
        self,
        recipe: Recipe,
        device: torch.device,
        *,
        rank: int = 0,
        world_size: int = 1,
        data_from: Callable[[], Any] | None = None,
        model_from: Callable[..., nn.Module] | None = None,
    ) -> None:
        reject_settings(recipe, FOR_IMAGES, "images")
        if model_from is not None:
            raise RecipeError("--model_from is for images and rows; language models are awd_lstm, so remove it")
        self.recipe, self.rank = recipe, rank
        self.selection_unit = recipe.objective.get("unit", "column")  # choose copies per column, token or batch
        text = from_user_text(data_from()) if data_from else load_data(recipe.data.name, recipe.data.root)
        if not isinstance(text, Text):
            raise RecipeError(f"{recipe.data.name} is not a text; set data.name to ptb, wikitext2 or text")
        self.text, settings = text, recipe.language
        self.identity = {"text": text.digest} | ({"data_from": function_name(data_from)} if data_from else {})
        self.loader = Windows(
            text.train, recipe.batch_size, settings.bptt,
            device=device, seed=recipe.seed, rank=rank, world_size=world_size,
        )  # fmt: skip
        columns = {"validation": settings.validation_columns, "test": settings.test_columns}
        self.evaluation = {
            name: Windows(getattr(text, name), count, settings.bptt, device=device, seed=None, part=name)
            for name, count in columns.items()
        }
        if "words" in recipe.model.args:
            raise RecipeError("model.args must not have 'words': the number of words comes from the text")
        kind = LANGUAGE_MODELS, "language model", recipe.model.name
        self.model = build_registered(*kind, words=len(text.words), **recipe.model.args).to(device)
        self.objective = self._objective()
        for inside in in_model_parts(self.objective.perturbation):
            inside.attach(self.model)
        self.objective.generator = Generator(device).manual_seed(stream_seed(recipe.seed, rank, 1))
        self.generator = Generator(device)  # unused: text has no augmentation
        self.hidden: Hidden = []

    def _objective(self) -> MaxUp:
        recipe, settings = self.recipe, self.recipe.objective
        if settings["name"] not in ("standard", "maxup"):
            raise RecipeError(f"objective {settings['name']!r} is not for text; use standard or maxup")
        if not recipe.perturb:
            raise RecipeError("the recipe's perturb is empty; for no perturbation use embedding_dropout with p: 0")
        if recipe.augment:
            raise RecipeError("augment is for images; for text, use perturb")
        if self.selection_unit == "token" and settings["strategy"] != "retain":
            raise RecipeError(
                "objective.unit=token mixes copies within a window, which a second pass cannot repeat; set "
                "objective.strategy=retain"
            )
        perturbation = build_perturbation(recipe.perturb, len(self.text.words))
        if len(in_model_parts(perturbation)) < len(recipe.perturb):
            names = ", ".join(part["name"] for part in recipe.perturb)
            raise RecipeError(f"perturb has {names}, but text needs perturbations inside the model: embedding_dropout")
        shared = settings.get("masks", "shared") == "shared"
        forward = partial(_forward, shared=shared)
        # Warmup steps count from the start of the run, so fine-tuning stages use m at once.
        context = ObjectiveContext(recipe, perturbation, self.loader.steps, {"forward": forward, "loss_fn": self.loss})
        objective = build_objective(context)
        assert isinstance(objective, MaxUp)
        objective.forward_shares_masks = shared
        return objective

    def step(self, model: Any, batch: Batch) -> Outcome:
        """Return the loss of the worst copies of a window, plus the activation regularization of these copies."""
        _, tokens, target = batch
        if self.loader.position == 1:  # the first window
            self.hidden = self.model.start(len(tokens))
        x = {"tokens": tokens, "hidden": self.hidden, "columns": len(tokens)}
        with warnings.catch_warnings():
            if self.selection_unit == "token":  # the loss of a column depends on all its copies, on purpose
                warnings.simplefilter("ignore", MaxUpWarning)
            outcome = self.objective.run(model, x, target)
        read, settings = outcome.output, self.recipe.language
        self.hidden = [(h.detach(), c.detach()) for h, c in read.hidden]
        loss = outcome.loss + settings.alpha * read.output.square().mean()
        if tokens.shape[1] > 1:
            loss = loss + settings.beta * read.raw.diff(dim=1).square().mean()
        return replace(outcome, loss=loss)

    def loss(self, read: LSTMOutput, target: Tensor) -> Tensor:
        """Return the cross-entropy per row, (B,). In training, the adversarial softmax changes the scores."""
        scores = self.model.decode(read.output)  # (B, T, V)
        if self.model.training and self.recipe.language.epsilon:
            weight = self.model.words.weight
            scores = adversarial_scores(scores, target, read.output, weight, self.recipe.language.epsilon)
        losses = F.cross_entropy(scores.flatten(0, 1), target.flatten(), reduction="none").view_as(target)  # (B, T)
        return by_unit(losses, read.columns, self.selection_unit)

    @torch.no_grad()
    def evaluate(self, model: Any, name: str) -> tuple[dict[str, Tensor], int]:
        """Return the sum of the losses of the words of a split, and their number. Only the first process evaluates."""
        windows = self.evaluation[name]
        loss, count = torch.zeros((), device=windows.columns.device, dtype=torch.double), 0
        model.eval()
        hidden = model.start(len(windows.columns))
        for _, tokens, target in windows if self.rank == 0 else ():
            read = model(tokens, hidden)
            hidden = read.hidden
            loss += F.cross_entropy(model.decode(read.output).flatten(0, 1), target.flatten(), reduction="sum")
            count += target.numel()
        model.train()
        return {"loss": loss}, count

    def report_metrics(self, means: dict[str, float]) -> dict[str, float]:
        """Return loss and perplexity."""
        return means | {"perplexity": perplexity(means["loss"])}

    def lr_scale(self, batch: Batch) -> float:
        """Return the length of the window relative to bptt: the gradient of a short one averages fewer words."""
        return batch[2].shape[1] / self.recipe.language.bptt

    def state_dict(self) -> dict[str, Any]:
        """Return the hidden state for the next window."""
        return {"hidden": [list(pair) for pair in self.hidden]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the hidden state for the next window."""
        expected = [] if not state["hidden"] else self.model.start(len(self.loader.columns))
        shapes = [[tuple(part.shape) for part in pair] for pair in expected]
        if [[tuple(part.shape) for part in pair] for pair in state["hidden"]] != shapes:
            raise ValueError("its hidden state does not fit this model")
        device = self.loader.columns.device
        self.hidden = [(h.to(device), c.to(device)) for h, c in state["hidden"]]

    def check_identity(self, identity: dict[str, str], folder: Path) -> None:
        """Raise a RunError if a checkpoint was trained on another text.

        Old checkpoints do not record it, or only its training part.
        """
        if identity.get("text", self.text.digest) not in (self.text.digest, self.text.train_digest):
            raise RunError(
                f"{folder} was trained on another text than this one of {len(self.text.train):,} tokens and "
                f"{len(self.text.words):,} words; set the right one with --data.root or --data_from, or choose "
                "another folder"
            )

    def skipped(self) -> set[str]:
        """Return the files that could not be read: none, because the text is read at the start."""
        return set()

    def description(self) -> dict[str, Any]:
        """Return what a user of the exported model needs to know: the word of each token."""
        return {"words": list(self.text.words)}

    def finish(
        self, model: nn.Module, folder: Path, *, should_stop: Callable[[], bool], quiet: bool
    ) -> dict[str, float]:
        """Run dynamic evaluation if the recipe asks for it."""
        if not self.recipe.language.dynamic:
            return {}
        from maxup.lab.tasks.dynamic_evaluation import dynamic_evaluation

        return dynamic_evaluation(model, self.text, folder, should_stop=should_stop, quiet=quiet)


def by_unit(losses: Tensor, columns: int, unit: str) -> Tensor:
    """Return the losses that choose the worst copy, (k * B, T) -> (k * B,), for k copies of B columns.

    "column" is the mean over the words. "batch" is the mean over all columns of a copy, so one copy wins everywhere.
    "token" takes the maximum over the copies for each word, and the mean over the words. This is the same for all
    copies of a column. The copy with the largest mean still has to win, because its hidden state carries over, so each
    copy gets the (detached) gap between its mean and the largest one added.

    Example:
        >>> losses = torch.tensor([[1.0, 5.0], [0.0, 2.0], [4.0, 3.0], [0.0, 0.0]])  # 2 copies of 2 columns
        >>> [by_unit(losses, 2, unit).tolist() for unit in ("column", "batch", "token")]
        [[3.0, 1.0, 3.5, 0.0], [2.0, 2.0, 1.75, 1.75], [4.0, 1.0, 4.5, 0.0]]
    """
    means = losses.mean(1)  # (k * B,)
    if unit == "column":
        return means
    copies = means.view(-1, columns)  # (k, B)
    if unit == "batch":
        return copies.mean(1, keepdim=True).expand_as(copies).flatten()
    worst = losses.view(len(copies), columns, -1).max(0).values.mean(1)  # (B,)
    gap = (copies - copies.max(0).values).detach()  # (k, B), 0 for the worst and negative for the others
    return (worst + gap).flatten()


def perplexity(loss: float) -> float:
    """Return the exponential of a mean loss in nats."""
    return math.exp(loss) if loss < 700 else math.inf


def _forward(model: Any, x: dict[str, Any], *, shared: bool) -> LSTMOutput:
    """Forward a window of k copies. If shared, the copies of a column use the same dropout masks."""
    read = model(x["tokens"], x["hidden"], x["columns"] if shared else None)
    assert isinstance(read, LSTMOutput)
    return read._replace(columns=x["columns"])
