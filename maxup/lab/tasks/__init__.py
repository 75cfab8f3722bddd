"""Tasks: what a recipe builds, what a step does, what is measured.

The loop asks of a task:

    model, objective, generator     what is trained, how, and the stream of its augmentation
    loader                          batches; epoch, position and state_dict, steps(epochs), and fixed_shapes
    step(model, batch)              an Outcome, whose loss is back-propagated
    pace(batch)                     factor of the learning rate
    evaluation, every_epoch         the splits there are, and those evaluated after every epoch
    evaluate(model, split)          sums by metric, and over how many
    measures(means), metrics        what is told of them, and its names
    skipped()                       files that could not be read
    judge, lower                    the metric that tells the best epoch, and whether lower is better
    unit                            what is counted in a batch, for the progress
    state_dict, load_state_dict     what a step leaves for the next
    identity, refuse_another        what a checkpoint must agree in, besides the recipe
    finish(model, folder, asked)    what is measured once, at the end, unless asked to stop
    description()                   what an exported model says of the data
"""

from typing import Any

import torch

from maxup.lab.recipes.schema import Recipe


def create_task(recipe: Recipe, device: torch.device, **options: Any) -> Any:
    """The task of a recipe.

    Example:
        >>> recipe = Recipe(perturb=[{"name": "gaussian", "sigma": 0.1}])
        >>> recipe.data.train_size = 100
        >>> type(create_task(recipe, torch.device("cpu"))).__name__
        'Vision'
    """
    if recipe.precision == "fp16" and device.type != "cuda":
        raise ValueError("precision fp16 needs a CUDA device, and there is none; use bf16, which a CPU has too, or no")
    if recipe.task == "language":
        from maxup.lab.tasks.language import Language

        return Language(recipe, device, **options)
    from maxup.lab.tasks.vision import Vision

    return Vision(recipe, device, **options)
