"""The text that a user's function returns: a string, lines, rows with a text column, or token ids."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maxup.errors import DataError, a_type, first_names
from maxup.lab.data.text import END, MAX_BYTES, Text, from_tokens, paragraphs, split_tokens
from maxup.lab.data.user_data import named_parts
from maxup.lab.data.user_iterable import iterate
from maxup.lab.limits import MAX_VOCABULARY

EXPECTED = "return a string, lines, rows with a text column, or token ids; or (train, validation, test) of them"


def from_user_text(returned: Any) -> Text:
    """Make a `Text` from what a user's function returned.

    Words are tokenized as in `from_text`, one paragraph per line or row. Token ids keep their numbers.

    Args:
        returned: A string, an iterable of strings, an iterable of dicts with a column "text" (such as Hugging Face
            `datasets`), or token ids, (N,). A dict with train, validation and test, or a tuple of three, has the
            splits; anything else is split, 80 % : 10 % : 10 %.
    """
    parts = _parts(returned)
    if all(isinstance(part, Tensor | np.ndarray) for part in parts):
        return _from_ids([torch.as_tensor(part) for part in parts])
    words = [_words(part) for part in parts]
    return from_tokens(*(words if len(words) == 3 else split_tokens(words[0])), min_count=2, plain=True)


def _parts(returned: Any) -> list[Any]:
    if isinstance(returned, Mapping):
        found = list(named_parts(returned).values())
        if found[0] is not None and found[1] is None and found[2] is None:
            return found[:1]
        if any(part is None for part in found):
            raise DataError(f"your text has the parts {first_names([*map(str, returned)])}; {EXPECTED}")
        return found
    if isinstance(returned, tuple):
        if len(returned) != 3:
            raise DataError(f"your text is a tuple of {len(returned)}; {EXPECTED}")
        return list(returned)
    return [returned]


def _words(part: Any) -> list[str]:
    """Return the words of a text, with END after every paragraph."""
    if isinstance(part, str):
        return [word for words in paragraphs(part) for word in (*words, END)]
    if not isinstance(part, Iterable) or isinstance(part, bytes | Tensor | np.ndarray):
        raise DataError(f"your text is {a_type(part)}; {EXPECTED}")
    tokens, size = list[str](), 0
    for row in iterate(part):
        line = row.get("text") if isinstance(row, Mapping) else row
        if not isinstance(line, str):
            raise DataError(f"a row of your text is {a_type(row)} without a string in 'text'; {EXPECTED}")
        size += len(line) + 1
        if size > MAX_BYTES:
            raise DataError(f"your text did not end after {MAX_BYTES:,} characters, which is the most; return less")
        words = [word for paragraph in paragraphs(line.replace("\n", " ")) for word in paragraph]
        tokens += [*words, END] if words else []
    return tokens


def _from_ids(parts: list[Tensor]) -> Text:
    for ids in parts:
        if ids.is_floating_point() or ids.is_complex() or ids.ndim != 1 or not len(ids):
            raise DataError(
                f"your token ids are {ids.dtype} of shape {tuple(ids.shape)}; return integers from 0 of shape (N,)"
            )
        low, high = map(int, ids.long().aminmax())  # torch has no minimum of uint16
        if low < 0 or high >= MAX_VOCABULARY:
            raise DataError(
                f"your token ids go from {low} to {high}, and the network has an embedding for each; return "
                f"integers from 0 to {MAX_VOCABULARY - 1}"
            )
    splits = [part.long() for part in (parts if len(parts) == 3 else split_tokens(parts[0]))]
    return Text(tuple(map(str, range(int(torch.cat(splits).max()) + 1))), *splits)
