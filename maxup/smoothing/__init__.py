"""Randomized smoothing: `Smooth` turns a classifier into one that certifies its predictions within an l2 radius."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maxup.smoothing.smooth import Certificate as Certificate
    from maxup.smoothing.smooth import Smooth as Smooth
else:
    from maxup.lazy import lazy_exports

    __all__, __getattr__, __dir__ = lazy_exports(__name__, {"smooth": "Certificate Smooth"})
