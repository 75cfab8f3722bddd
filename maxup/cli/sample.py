"""Generate text with the language model of a run."""

import sys
from collections.abc import Sequence
from pathlib import Path

from maxup.cli.parser import add_checkpoint, add_root, parser_of
from maxup.cli.user_code import add_user_code, user_functions
from maxup.lab.limits import option
from maxup.lab.output import say

GROUP = "Trained models"
EXAMPLES = """examples:
  maxup sample runs/text/awd_lstm-embedding_dropout-maxup/seed-0
  maxup sample runs/ptb/adv_awd_lstm-embedding_dropout-maxup/seed-0 \\
    --prompt "the company said" --temperature 0.8
"""


def main(argv: Sequence[str]) -> int:
    """Generate text."""
    parser = parser_of("sample", "Generate text with the language model of a run.", EXAMPLES)
    parser.add_argument("run", type=Path, help="run folder of a language model, as written by maxup train")
    parser.add_argument(
        "--words", type=option("sample --words"), default=100, metavar="N", help="number of words (default: 100)"
    )
    parser.add_argument(
        "--temperature",
        type=option("sample --temperature"),
        default=1.0,
        metavar="T",
        help="below 1 prefers probable words; 0 always takes the most probable one (default: 1)",
    )
    parser.add_argument(
        "--prompt",
        default="",
        metavar="TEXT",
        help="first words, separated as in the text; a line break ends a sentence",
    )
    parser.add_argument("--seed", type=option("sample --seed"), default=0, metavar="N", help="random seed (default: 0)")
    add_checkpoint(parser)
    add_root(parser)
    add_user_code(parser, recorded=True)
    args = parser.parse_args(argv)
    from torch import Generator

    from maxup.lab.data.text import UNKNOWN
    from maxup.lab.tasks.sample import sample
    from maxup.lab.train.runs import open_run

    run = open_run(args.run, args.checkpoint, task="language", root=args.root, **user_functions(args))
    generator = Generator(run.task.generator.device).manual_seed(args.seed)
    options = {"words": args.words, "temperature": args.temperature, "prompt": args.prompt}
    text = run.task.text
    if UNKNOWN in text.words and (unknown := [word for word in text.split(args.prompt) if word not in text.words]):
        say(f"not in the vocabulary, replaced by {UNKNOWN}: {' '.join(unknown)}", file=sys.stderr)
    say(sample(run.model, text, generator=generator, **options))
    return 0
