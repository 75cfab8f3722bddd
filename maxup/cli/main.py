"""The `maxup` command: one verb a file, imported when called, so that `maxup --help` does not import torch."""

import os
import sys
from importlib import import_module

from maxup.lab.output import say
from maxup.lab.output import sentence as shortened

VERBS = {
    "ls": "list recipes",
    "cp": "copy a recipe to change it",
    "train": "train a recipe; the same command goes on where it stopped",
    "compare": "a recipe with and without MaxUp, over several seeds",
    "eval": "evaluate a run's checkpoint",
    "certify": "certify a network's answers by randomized smoothing",
    "sample": "write some text with a run's language model",
    "show": "draw the copies a run's images have, their losses and the worst",
    "export": "write a run's model to share it",
    "doctor": "examine your own model and batch",
    "reproduce": "train the recipes of a table of the paper with several seeds",
    "report": "show our results beside the paper's",
    "data": "show which data sets are found where",
}
ALONE = ("compare", "reproduce", "eval", "export")  # what would be done once by every process of torchrun
HELP = f"""usage: maxup VERB ...

Train on the worst of m random copies of every example.

{chr(10).join(f"  {verb:<10} {what}" for verb, what in VERBS.items())}

  maxup ls digits                                     what there is
  maxup train digits/mlp-gaussian-maxup --objective.m 8   train, with a setting changed
  maxup VERB --help                                   more about a verb
"""


def main(argv: list[str] | None = None) -> int:
    """Run a verb; 0 is success, 1 a failure told in a sentence, 2 a wrong call, 130 Ctrl-C, 141 a closed pipe."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help", "help"):
        say(HELP, end="")
        return 0 if argv else 2
    if argv[0] in ("-V", "--version"):
        import maxup

        say(f"maxup {maxup.__version__}")
        return 0
    verb, rest = argv[0], argv[1:]
    if verb not in VERBS:
        from maxup.errors import unknown_name

        say(f"maxup: {unknown_name(verb, VERBS, 'verb')}", file=sys.stderr)
        return 2
    world = os.environ.get("WORLD_SIZE", "")
    if verb in ALONE and world.isdecimal() and int(world) > 1:
        wanted = "call it without torchrun, or unset WORLD_SIZE"
        say(f"maxup {verb}: it runs in one process, but WORLD_SIZE is {world}; {wanted}", file=sys.stderr)
        return 2
    module = import_module(f"maxup.cli.{verb}")
    try:
        return int(module.main(rest) or 0)
    except KeyboardInterrupt:
        say("maxup: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read our output is gone
        return 141
    except Exception as error:
        from maxup.errors import error_message
        from maxup.lab.user_code import raised_in_user_code

        said = error_message(error) if isinstance(error, OSError) else str(error)
        sentence = raised_in_user_code(error) or (said if told(error) else None)
        if sentence is None and isinstance(error, UnicodeEncodeError):
            sentence = f"{error.object!r:.60} has characters that no file name can have; choose another name"
        if sentence is None:
            raise
        say(f"maxup {verb}: {shortened(sentence)}", file=sys.stderr)
        return 130 if type(error).__name__.startswith("Interrupted") else 1


def told(error: Exception) -> bool:
    """Whether an error is a sentence already: one this package raised itself, or the system's own."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    ours = trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith("maxup.")
    return isinstance(error, OSError) or (ours and isinstance(error, RuntimeError | ValueError | TypeError))
