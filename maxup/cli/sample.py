"""`maxup sample RUN`: some text that a run's language model writes."""

import sys
from collections.abc import Sequence
from pathlib import Path

from maxup.cli.parser import add_root, parser_of
from maxup.lab.limits import option
from maxup.lab.output import say

EXAMPLES = """examples:
  maxup sample runs/text/awd_lstm-embedding_dropout-maxup/seed-0
  maxup sample runs/ptb/adv_awd_lstm-embedding_dropout-maxup/seed-0 --prompt "the company said" --temperature 0.8
"""


def main(argv: Sequence[str]) -> int:
    """Write."""
    parser = parser_of("sample", "Write some text with a run's language model.", EXAMPLES)
    parser.add_argument("run", type=Path, help="folder of a run on text, as maxup train made it")
    parser.add_argument(
        "--words", type=option("sample --words"), default=100, metavar="N", help="how many (default: 100)"
    )
    parser.add_argument(
        "--temperature",
        type=option("sample --temperature"),
        default=1.0,
        help="below 1 prefers probable words, 0 takes the most probable one",
    )
    parser.add_argument(
        "--prompt", default="", help="words to begin with, in the vocabulary's spelling; a line break ends a sentence"
    )
    parser.add_argument("--seed", type=option("sample --seed"), default=0, help="of the draws (default: 0)")
    parser.add_argument("--checkpoint", choices=["best", "last"], default="last", help="which one (default: last)")
    add_root(parser)
    args = parser.parse_args(argv)
    from torch import Generator

    from maxup.lab.data.text import UNKNOWN
    from maxup.lab.tasks.sample import sample
    from maxup.lab.train.runs import open_run

    run = open_run(args.run, args.checkpoint, task="language", root=args.root)
    generator = Generator(run.task.generator.device).manual_seed(args.seed)
    options = {"words": args.words, "temperature": args.temperature, "prompt": args.prompt}
    known = run.task.text.words
    if UNKNOWN in known and (unknown := [word for word in args.prompt.split() if word not in known]):
        say(f"not in the vocabulary, so read as {UNKNOWN}: {' '.join(unknown)}", file=sys.stderr)
    say(sample(run.model, run.task.text, generator=generator, **options))
    return 0
