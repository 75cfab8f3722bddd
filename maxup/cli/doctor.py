"""Check that MaxUp is applied correctly to your model and batch."""

from collections.abc import Sequence

from maxup.cli.parser import parser_of
from maxup.errors import InputsError, format_error
from maxup.lab.output import say

GROUP = "Your code"
EXAMPLES = """example:
  maxup doctor mine:setup        for a mine.py with

    def setup():
        return {"model": model, "batch": (x, y)}

  The dict may also have
    "loss_fn"         loss per example (default: cross-entropy)
    "perturbation"    an object such as CutMix(10)
                      (default: Gaussian noise, 0.1 times the std of x)
    "forward"         how to call the model (default: model(x))
"""


def main(argv: Sequence[str]) -> int:
    """Check the user's model and batch."""
    parser = parser_of(
        "doctor",
        "Check your model, loss and batch: is the worst copy worse than the average one, does selection leave side "
        "effects, does m = 1 equal plain training, and what does a step cost? Your function is imported and called. "
        "The exit code is 1 if a check reports an error.",
        EXAMPLES,
    )
    parser.add_argument(
        "function", metavar="MODULE:FUNCTION", help="function that returns a dict or a tuple with model and batch"
    )
    args = parser.parse_args(argv)
    from maxup.diagnostics.checks import run_checks
    from maxup.diagnostics.inputs import make_inputs
    from maxup.lab.user_code import find_function, where_raised

    function = find_function(args.function)
    try:
        returned = function()
    except (Exception, SystemExit) as error:
        raise InputsError(f"{args.function} raised {format_error(error)}{where_raised(error)}") from error
    errors = 0
    for finding in run_checks(make_inputs(returned)):
        say(f"{finding}{where_raised(finding.error) if finding.error else ''}", flush=True)
        errors += finding.level == "error"
    say(f"\n{errors} error{'s' if errors > 1 else ''}" if errors else "\nNo errors.")
    return 1 if errors else 0
