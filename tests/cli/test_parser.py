import os
import subprocess
import sys

import pytest

from maxup.cli.parser import free_stdout, parser_of
from tests.waiting import PATIENCE


def test_options_in_full_only(capsys):
    parser = parser_of("try", "Try it.", "example:\n  maxup try --checkpoint best")
    parser.add_argument("--checkpoint")
    assert parser.parse_args(["--checkpoint", "best"]).checkpoint == "best"
    assert parser.parse_known_args(["--check", "best"])[1] == ["--check", "best"]
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["--help"])
    assert ended.value.code == 0
    assert "example:\n  maxup try --checkpoint best" in capsys.readouterr().out  # lines stay lines


def test_an_unknown_option_gets_the_nearest_one(capsys):
    parser = parser_of("try", "Try it.", "")
    parser.add_argument("--checkpoint")
    with pytest.raises(SystemExit):
        parser.parse_args(["--chekpoint", "best"])
    message = "maxup try: option '--chekpoint' is unknown; did you mean '--checkpoint'? (see maxup try --help)\n"
    assert capsys.readouterr().err == message


def test_only_the_document_is_on_stdout(capfd):
    """Neither prints nor child processes write to it, and afterwards both do again."""
    child = [sys.executable, "-c", "print('child')"]
    with free_stdout(True):
        print("ours")
        subprocess.run(child, check=True)
    print("document", flush=True)
    subprocess.run(child, check=True)
    assert capfd.readouterr() == ("document\nchild\n", "ours\nchild\n")
    with free_stdout(False):
        print("ours", flush=True)
    assert capfd.readouterr().out == "ours\n"


@pytest.mark.parametrize("closed", [1, 2])
def test_a_closed_output_does_no_harm(closed):
    code = "from maxup.cli.parser import free_stdout\nwith free_stdout(True): print('ours')\nraise SystemExit(5)"
    done = subprocess.run([sys.executable, "-c", code], preexec_fn=lambda: os.close(closed), timeout=PATIENCE)
    assert done.returncode == 5
