"""Tasks: the model and data of a recipe, the training step, and the evaluation.

The training loop needs these attributes of a task:

    model, objective, generator     the model, its objective, and the random generator of the augmentation
    loader                          yields batches; has epoch, position, state_dict, steps(epochs) and fixed_shapes
    step(model, batch)              returns an Outcome with the loss to backpropagate
    lr_scale(batch)                 returns the factor of the learning rate
    evaluation, every_epoch         all splits to evaluate, and those to evaluate during training
    evaluate(model, split)          returns the sum of each metric, and the number of examples
    report_metrics(means)           returns the metrics to report, from the means
    skipped()                       returns the files that could not be read
    monitor, lower_is_better        the metric that decides the best epoch
    unit                            what an example is, for the progress bar
    seed_selects_data               whether the seed selects the training examples
    state_dict, load_state_dict     state that is carried from step to step
    identity, check_identity        what must agree with a checkpoint, besides the recipe
    finish(model, folder, should_stop, quiet)    returns metrics that are computed once after training
    description()                   returns what an exported model needs to know about the data
"""

from typing import Any

import torch

from maxup.errors import RecipeError
from maxup.lab.recipes.schema import Recipe


def create_task(recipe: Recipe, device: torch.device, **options: Any) -> Any:
    """Build the task of a recipe.

    Example:
        >>> recipe = Recipe(perturb=[{"name": "gaussian", "sigma": 0.1}])
        >>> recipe.data.train_size = 100
        >>> type(create_task(recipe, torch.device("cpu"))).__name__
        'Vision'
    """
    if recipe.precision == "fp16" and device.type != "cuda":
        raise RecipeError("precision fp16 needs a GPU, but there is none; use bf16 or no")
    if recipe.task == "language":
        from maxup.lab.tasks.language import Language

        return Language(recipe, device, **options)
    from maxup.lab.tasks.vision import Vision

    return Vision(recipe, device, **options)
