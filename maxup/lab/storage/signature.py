"""Sign the functions that a run was trained with, so that its owner can open the run without naming them again.

A run records the names of its functions, but a record can come from anyone, and importing a module executes it. So
training also writes a signature: an HMAC of the names and of the current folder, with a secret key of this user. A
valid signature shows that this user has trained with these functions in this folder, so importing them runs nothing
new.
"""

import hmac
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from maxup.errors import error_message
from maxup.lab.storage.atomic_io import dump, parse, read, replace

FILE = "code.json"  # in the folder of a run
KEY_BYTES = 32


def code_names(identity: Mapping[str, Any]) -> dict[str, str]:
    """Return MODULE:FUNCTION by option, from the identity of a task.

    Example:
        >>> code_names({"model_from": "mine:net", "data_from": "", "data": "5f6b"})
        {'model_from': 'mine:net'}
    """
    return {option: str(identity[option]) for option in ("model_from", "data_from") if identity.get(option)}


def sign(folder: Path, names: Mapping[str, str]) -> str | None:
    """Write the signature of functions, MODULE:FUNCTION by option, to the folder of a run.

    Returns:
        None, or the reason if the run is not signed.
    """
    try:
        replace(folder / FILE, dump({"signature": _signature(names, _make_key())}))
    except (OSError, RuntimeError) as error:  # a read-only home folder, or none
        return error_message(error)
    return None


def is_signed(folder: Path, names: Mapping[str, str]) -> bool:
    """Whether this user trained the run with these functions, in the current folder."""
    try:
        found: Any = parse(FILE, read(folder / FILE))
        return hmac.compare_digest(str(found["signature"]), _signature(names, _read_key()))
    except (OSError, RuntimeError, ValueError, TypeError, KeyError):
        return False


def _signature(names: Mapping[str, str], key: bytes) -> str:
    return hmac.digest(key, dump([sorted(names.items()), os.getcwd()]), "sha256").hex()


def _key_file() -> Path:
    """Return the path of the key. Raises a RuntimeError if the user has no home folder."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    state = state if state.is_absolute() else Path.home() / ".local" / "state"  # the specification ignores other paths
    if not state.is_absolute():
        raise RuntimeError(f"the home folder {Path.home()} is not an absolute path")
    return state / "maxup" / "key"


def _make_key() -> bytes:
    """Read the key of this user, or create it, readable for this user only."""
    path = _key_file()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not path.exists():
        with NamedTemporaryFile(dir=path.parent) as file:  # of mode 0600
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            with suppress(FileExistsError):  # another process was first
                os.link(file.name, path)
    return _read_key()


def _read_key() -> bytes:
    key = _key_file().read_bytes()
    if len(key) != KEY_BYTES:
        raise OSError(f"{_key_file()} is damaged; remove it")
    return key
