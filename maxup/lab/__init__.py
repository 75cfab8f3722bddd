"""The lab runs experiments: models, data, recipes, training, certification, results. Install it as `maxup[lab]`."""

from importlib.util import find_spec

REQUIRES = (
    "accelerate", "filelock", "jsonargparse", "matplotlib", "PIL", "rich", "safetensors", "scipy", "sklearn",
    "tensorboard", "yaml",
)  # fmt: skip

if missing := [name for name in REQUIRES if find_spec(name) is None]:
    raise ModuleNotFoundError(
        f"maxup.lab needs packages that are not installed ({', '.join(missing)}): pip install 'maxup[lab]'",
        name=missing[0],
    )
