"""Read YAML from files and options. A file may be untrusted: aliases, duplicate keys and huge documents are errors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from maxup.errors import RecipeError, a_type, error_message, format_value
from maxup.lab.limits import MAX_NODES, MAX_VALUES
from maxup.lab.storage.atomic_io import read_text

TOO_LARGE = f"it has more than {MAX_NODES:,} values; give fewer"


class _Loader(yaml.SafeLoader):
    """A SafeLoader without aliases. A few lines of nested aliases can expand to billions of values."""

    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.nodes += 1
        if self.nodes > 2 * MAX_NODES:  # keys are nodes too
            raise RecipeError(TOO_LARGE)
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            line = event.start_mark.line + 1
            raise RecipeError(f"line {line} uses the alias *{event.anchor:.40}; write out what it stands for")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode):
                raise RecipeError(f"line {line} has a {key.id} as a key; a key must be a string")
            if key.value in seen:
                raise RecipeError(f"line {line} repeats the key {key.value!r:.60}; keep one of them")
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def parse_yaml(text: str) -> Any:
    """Parse YAML without aliases and duplicate keys. The package reads all its YAML with this function.

    Example:
        >>> parse_yaml("a: [1, b]")
        {'a': [1, 'b']}
        >>> parse_yaml("[&a x, *a]")
        Traceback (most recent call last):
        maxup.errors.RecipeError: line 1 uses the alias *a; write out what it stands for
    """
    return yaml.load(text, _Loader)  # a SafeLoader


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file. Its size is checked, its keys are not, and a `base` is not followed."""
    try:
        content = parse_yaml(read_text(path)) or {}
        check_document(content)
    except RecipeError as error:
        raise RecipeError(f"{path}: {error}") from None
    except Exception as error:  # of any type: "!!bool 3" raises KeyError, "!!int ''" raises IndexError
        raise RecipeError(f"{path} cannot be read as YAML: {error_message(error)}") from None
    if not isinstance(content, dict):
        raise RecipeError(f"{path} must contain keys and values, but contains {a_type(content)}")
    return content


def check_document(document: Any) -> None:
    """Raise a RecipeError if a document is too large, or if a string in it contains an alias.

    Call this before jsonargparse, whose time is quadratic in the length of a list. It parses strings as YAML, and the
    strings inside them, so this function does too.
    """
    pending, count = [("", document)], 0
    while pending:
        name, value = pending.pop()
        count += 1
        if count > MAX_NODES:
            raise RecipeError(TOO_LARGE)
        if isinstance(value, Mapping):
            items = ((key if isinstance(key, str) else format_value(key), one) for key, one in value.items())
            pending += [(f"{name}.{key:.60}".lstrip(".")[:80], one) for key, one in items]
        elif isinstance(value, list | tuple):
            if len(value) > MAX_VALUES:
                raise RecipeError(f"{name or 'a list'} has {len(value)} values; the limit is {MAX_VALUES}")
            pending += [(name, one) for one in value]
        elif isinstance(value, str) and ("*" in value or len(value) > MAX_VALUES):  # a shorter one has fewer values
            try:
                inner = parse_yaml(value)
            except RecipeError:
                raise
            except Exception:  # of any type: jsonargparse reports what is wrong
                continue
            if inner != value:
                pending.append((name, inner))
