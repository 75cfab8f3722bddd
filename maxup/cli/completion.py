"""Print a script that completes commands in your shell."""

import io
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from importlib import import_module

from maxup.cli.parser import parser_of

GROUP = "Your code"
EXAMPLES = """examples:
  maxup completion bash > ~/.local/share/bash-completion/completions/maxup
  maxup completion zsh > ~/.zfunc/_maxup
    with a ~/.zshrc that has  fpath+=~/.zfunc  before  compinit
  maxup completion fish > ~/.config/fish/completions/maxup.fish
Run the command again after an update of maxup.
"""
BASH = """_maxup() {{
    local cur=${{COMP_WORDS[COMP_CWORD]}} options= words= found
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{verbs}" -- "$cur"))
        return
    fi
    case ${{COMP_WORDS[1]}} in
{cases}
    esac
    case $cur in
        -*) COMPREPLY=($(compgen -W "$options" -- "$cur")) ;;
        *) while IFS= read -r found; do COMPREPLY+=("$found"); done < <(
            compgen -W "$words" -- "$cur"; compgen -f -- "$cur") ;;
    esac
}}
complete -o filenames -F _maxup maxup
"""
ZSH = """#compdef maxup
_maxup() {{
    local options= words_=
    if (( CURRENT == 2 )); then
        compadd -- {verbs}
        return
    fi
    case ${{words[2]}} in
{cases}
    esac
    if [[ $PREFIX == -* ]]; then
        compadd -- ${{=options}}
    else
        compadd -- ${{=words_}}
        _files
    fi
}}
if [[ ${{funcstack[1]}} == _maxup ]]; then _maxup "$@"; else compdef _maxup maxup; fi
"""


@dataclass(frozen=True)
class Words:
    """What can follow a verb."""

    options: Sequence[str]
    words: Sequence[str]
    """Names that can be its argument, besides files."""


def main(argv: Sequence[str]) -> int:
    """Print a completion script."""
    parser = parser_of("completion", "Print a script that completes verbs, options and recipe names.", EXAMPLES)
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], help="your shell")
    args = parser.parse_args(argv)
    from maxup.cli.main import find_verbs

    verbs = {name: describe(name) for name in find_verbs() if name != "completion"}
    verbs["completion"] = Words(["--help"], ["bash", "zsh", "fish"])
    sys.stdout.write({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](verbs))
    return 0


def describe(verb: str) -> Words:
    """Return what can follow a verb, according to its --help.

    Example:
        >>> describe("cp").words[0]
        'certify/fashion_mnist-gaussian'
    """
    from maxup.lab.recipes.load import list_recipes
    from maxup.lab.results.paper import table_names

    out = io.StringIO()
    with redirect_stdout(out), suppress(SystemExit):
        import_module(f"maxup.cli.{verb}").main(["--help"])
    text = out.getvalue()
    options = re.findall(r"^ +(?:-h, )?(--[\w.]+)", text, re.MULTILINE)
    words = []
    for argument, names in (("recipe", list_recipes), ("table", table_names)):
        if re.search(rf"^  {argument} ", text, re.MULTILINE):
            words += names()
    return Words(list(dict.fromkeys(options)), words)


def _cases(verbs: Mapping[str, Words], words: str) -> str:
    return "\n".join(
        f'        {name}) options="{" ".join(found.options)}" {words}="{" ".join(found.words)}" ;;'
        for name, found in verbs.items()
    )


def _bash(verbs: Mapping[str, Words]) -> str:
    return BASH.format(verbs=" ".join(verbs), cases=_cases(verbs, "words"))


def _zsh(verbs: Mapping[str, Words]) -> str:
    return ZSH.format(verbs=" ".join(verbs), cases=_cases(verbs, "words_"))


def _fish(verbs: Mapping[str, Words]) -> str:
    lines = [f'complete -c maxup -n __fish_use_subcommand -f -a "{" ".join(verbs)}"']
    for name, found in verbs.items():
        after = f'complete -c maxup -n "__fish_seen_subcommand_from {name}"'
        lines += [f"{after} -l {option.removeprefix('--')}" for option in found.options]
        lines += [f'{after} -a "{" ".join(found.words)}"'] if found.words else []
    return "\n".join(lines) + "\n"
