"""The first line of a run: what is trained, on what, and where."""

from typing import Any

import torch
from accelerate import Accelerator

from maxup.lab.models.count import count_parameters, format_count
from maxup.lab.recipes.schema import Recipe
from maxup.lab.tasks.splits import decoding_settings


def describe(recipe: Recipe, task: Any, accelerator: Accelerator) -> str:
    """Return model, data, objective and device of a run."""
    model = task.identity.get("model_from") or recipe.model.name
    data = task.identity.get("data_from") or recipe.data.name
    if recipe.task == "language":
        size = f"{len(task.text.train):,} words, vocabulary of {len(task.text.words):,}"
    else:
        size = f"{len(task.train):,} examples, {len(task.train.classes)} classes"
        if task.identity["data_from"] and (ignored := decoding_settings(recipe)):
            verb = "have" if len(ignored) > 1 else "has"
            size += f" ({' x '.join(map(str, task.train.shape))}; {', '.join(ignored)} {verb} no effect on --data_from)"
    objective = recipe.objective["name"]
    if "m" in recipe.objective:
        objective += f", m = {recipe.objective['m']}"
    device = accelerator.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    several = f"{accelerator.num_processes} x " if accelerator.num_processes > 1 else ""
    parameters = format_count(count_parameters(task.model))
    return f"model {model} ({parameters} parameters); data {data} ({size}); objective {objective}; {several}{name}"
