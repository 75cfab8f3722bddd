"""The `maxup` command, one verb per file. It needs the lab."""

import sys

try:
    import maxup.lab  # noqa: F401
except ModuleNotFoundError as error:
    sys.exit(f"maxup: {error}")
