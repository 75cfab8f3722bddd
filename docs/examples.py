"""Griffe extension: render the doctests of "Example:" sections as code, as those of "Examples:" sections."""

import re
from typing import Any

from griffe import Extension, Object


class Examples(Extension):
    """Rename the section in every docstring."""

    def on_instance(self, *, obj: Object, **kwargs: Any) -> None:
        """Edit a docstring before it is parsed."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
