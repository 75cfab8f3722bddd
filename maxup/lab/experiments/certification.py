"""Certification in a comparison: every run is certified with the same noise, by default that of its training."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from maxup.errors import RunError
from maxup.lab.certify.analysis import average_radius, certified_accuracy
from maxup.lab.certify.run import Settings, certify
from maxup.lab.certify.target import load_target
from maxup.lab.data.images import evenly_spaced
from maxup.lab.recipes.schema import Recipe, gaussian_sigma
from maxup.lab.results.comparison import CERTIFIED_RADII
from maxup.smoothing.sampling import max_radius, plan


@dataclass(frozen=True)
class Certification:
    """How the runs of a comparison are certified."""

    images: int
    """Test images of every run, evenly spaced."""
    n: int = 10_000
    """Noisy copies per image."""
    sigma: float | None = None
    """Standard deviation of the noise. None: that of the training."""

    def record(self) -> dict[str, Any]:
        """Return the settings for a result file, without a sigma of None."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def check_noise(recipe: Recipe) -> float:
    """Return sigma of the training noise, or raise a RunError if the runs of a recipe cannot be certified."""
    sigma = gaussian_sigma(recipe)
    if sigma is None:
        raise RunError(
            f"certification needs Gaussian noise on pixels, but the recipe has perturb {recipe.perturb} and "
            f"model.normalize {recipe.model.normalize}; set perturb to [{{name: gaussian, sigma: ...}}] and "
            "model.normalize to true, as smoke/digits-gaussian-maxup does"
        )
    return sigma


def certify_run(folder: Path, recipe: Recipe, how: Certification, **user_code: Any) -> dict[str, float]:
    """Certify the last weights of a run. The certificates are in the folder of the run, and are not computed again.

    Returns:
        The average certified radius, and the certified accuracies in percent, without radii that n copies cannot reach.
    """
    sigma = check_noise(recipe) if how.sigma is None else how.sigma
    target = load_target(folder, root=recipe.data.root, **user_code)
    indices = evenly_spaced(len(target.images), how.images)
    name = f"{sigma:g}" if float(f"{sigma:g}") == sigma else repr(sigma)
    path = folder / f"certified-{name}-n-{how.n}.tsv"
    settings = Settings(sigma, n=how.n)
    rows = certify(target, settings, indices, path, say=lambda _: None)
    largest = max_radius(plan(how.n, settings.alpha, early=False), sigma)
    radii = [radius for radius in CERTIFIED_RADII if radius <= largest]
    accuracies = {f"certified_{radius:g}": 100 * certified_accuracy(rows, radius).mean for radius in radii}
    return {"radius": average_radius(rows), **accuracies}
