"""The `maxup` command. Every file in this folder that defines `main(argv)` is a verb.

The first line of a verb's docstring is its summary in `maxup --help`. A verb can set `GROUP`, its heading there, and
`ONE_PROCESS = True` if it must not run under torchrun. This module parses the files and imports only the verb that is
called, so that `maxup --help` is fast and works without the lab.
"""

import ast
import dis
import os
import sys
from collections import defaultdict
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from maxup.errors import InterruptedQueueError, InterruptedRunError, MaxUpError, error_message, unknown_name

FOLDER = Path(__file__).parent
GROUPS = ("Recipes and data", "Training", "Trained models", "Results", "Your code")  # in the order of --help
HELP = """usage: maxup VERB ...

Train on the worst of m random copies of every example.
{}
Examples:
  maxup ls digits                              list recipes
  maxup train digits/mlp-gaussian-maxup        train; the same command resumes
  maxup train digits/mlp-gaussian-maxup --objective.m 8 --out runs/m8
  maxup VERB --help                            explain a verb and its options
"""


@dataclass(frozen=True)
class Verb:
    """What `maxup --help` and the dispatcher need to know about a verb."""

    summary: str
    group: str = "Other"
    one_process: bool = False


def find_verbs() -> dict[str, Verb]:
    """Return the verbs by name.

    Example:
        >>> find_verbs()["ls"].summary
        'List your runs, recipes and networks.'
    """
    verbs = {path.stem: _parse_verb(path) for path in sorted(FOLDER.glob("*.py")) if path.stem != "main"}
    return {name: verb for name, verb in verbs.items() if verb is not None}


def main(argv: list[str] | None = None) -> int:
    """Run a verb.

    Returns:
        0: success, 1: an error, 2: invalid arguments, 130: interrupted, 141: the reader of the output closed it.
    """
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help", "help"):
        sys.stdout.write(_help())
        return 0 if argv else 2
    if argv[0] in ("-V", "--version"):
        import maxup

        sys.stdout.write(f"maxup {maxup.__version__}\n")
        return 0
    name, rest = argv[0], argv[1:]
    file = FOLDER / f"{name}.py"
    verb = _parse_verb(file) if name.isidentifier() and name != "main" and file.is_file() else None
    if verb is None:
        return _fail(2, f"maxup: {unknown_name(name, find_verbs(), 'verb')}")
    if not _has_lab():
        return _fail(1, "maxup: the command needs the lab: pip install 'maxup[lab]'")
    world = os.environ.get("WORLD_SIZE", "")
    if verb.one_process and world.isdecimal() and int(world) > 1:
        advice = "call it without torchrun, or unset WORLD_SIZE"
        return _fail(2, f"maxup {name}: it runs in one process, but WORLD_SIZE is {world}; {advice}")
    try:
        return int(import_module(f"maxup.cli.{name}").main(rest) or 0)
    except KeyboardInterrupt:
        return _fail(130, "maxup: interrupted")
    except BrokenPipeError:
        return 141
    except Exception as error:
        message = user_message(error)
        if message is None:
            raise
        from maxup.lab.output import sentence

        interrupted = isinstance(error, InterruptedRunError | InterruptedQueueError)
        return _fail(130 if interrupted else 1, f"maxup {name}: {sentence(message)}")


def _help() -> str:
    groups = defaultdict[str, list[str]](list)
    for name, verb in find_verbs().items():
        groups[verb.group].append(f"  {name:<10} {verb.summary}")
    order = [*(group for group in GROUPS if group in groups), *sorted(groups.keys() - set(GROUPS))]
    return HELP.format("".join(f"\n{group}:\n" + "\n".join(groups[group]) + "\n" for group in order))


def _parse_verb(path: Path) -> Verb | None:
    """Read the docstring and the constants of a verb. Returns None if the file does not define `main`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if not any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
        return None
    constants = {"GROUP": "Other", "ONE_PROCESS": False}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id="GROUP" | "ONE_PROCESS" as name)], value=ast.Constant(value=value)):
                constants[name] = value
    summary = (ast.get_docstring(tree) or "").partition("\n")[0]
    return Verb(summary, str(constants["GROUP"]), bool(constants["ONE_PROCESS"]))


def _has_lab() -> bool:
    try:
        import maxup.lab  # noqa: F401
    except ImportError as error:
        if (error.name or "").startswith("maxup"):
            raise
        return False
    return True


def _fail(code: int, message: str) -> int:
    sys.stderr.write(f"{message}\n")
    return code


def user_message(error: Exception) -> str | None:
    """Return the message for the user, or None for a bug of ours, which keeps its traceback."""
    from maxup.lab.user_code import raised_in_user_code

    if message := raised_in_user_code(error):
        return message
    if isinstance(error, OSError):
        return error_message(error)
    if isinstance(error, UnicodeEncodeError):
        return f"{error.object!r:.60} has characters that a file name cannot have; choose another name"
    if isinstance(error, MaxUpError) or _raised_by_check(error):
        return str(error)
    return None


def _raised_by_check(error: Exception) -> bool:
    """Whether a `raise` statement of this package raised a built-in error, as argument checks of the core do.

    An operation that fails, such as None + 1, is not a `raise` statement.
    """
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None or not isinstance(error, ValueError | TypeError | RuntimeError):
        return False
    code, ours = last.tb_frame.f_code, str(last.tb_frame.f_globals.get("__name__")).startswith("maxup.")
    return ours and code.co_code[last.tb_lasti] == dis.opmap["RAISE_VARARGS"]
