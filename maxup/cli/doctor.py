"""`maxup doctor MODULE:FUNCTION`: is MaxUp applied right to your model?"""

from collections.abc import Sequence

from maxup.cli.parser import parser_of
from maxup.lab.output import say

EXAMPLES = """example:
  maxup doctor mine:setup        for a mine.py with

    def setup():
        return {"model": model, "batch": (x, y)}

  and, where they are not the default, "loss_fn": a loss per example, "perturbation": an object such as CutMix(10)
  (default: Gaussian noise of a tenth of x's own deviation), "forward": how the model is called, forward(model, x).
"""


def main(argv: Sequence[str]) -> int:
    """Examine."""
    parser = parser_of(
        "doctor",
        "Examine your model, loss and batch: does the worst copy differ from the average one, does "
        "selecting leave a trace, is m = 1 the baseline, what does it cost? Your function is imported and called. Exit "
        "code 1 if something is wrong.",
        EXAMPLES,
    )
    parser.add_argument("function", metavar="MODULE:FUNCTION", help="returns model and batch, as a dict or a tuple")
    args = parser.parse_args(argv)
    from maxup.diagnostics.checks import run_checks
    from maxup.diagnostics.inputs import make_inputs
    from maxup.errors import InputsError, format_error
    from maxup.lab.user_code import find_function

    function = find_function(args.function)
    try:
        returned = function()
    except (Exception, SystemExit) as error:
        raise InputsError(f"{args.function} raised {format_error(error)}") from error
    wrong = 0
    for finding in run_checks(make_inputs(returned)):
        say(finding, flush=True)
        wrong += finding.level == "wrong"
    say(f"\n{wrong} wrong" if wrong else "\nNothing is wrong.")
    return 1 if wrong else 0
