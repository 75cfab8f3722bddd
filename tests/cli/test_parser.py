import pytest

from maxup.cli.parser import parser_of


def test_options_in_full_only(capsys):
    parser = parser_of("try", "Try it.", "example:\n  maxup try --checkpoint best")
    parser.add_argument("--checkpoint")
    assert parser.parse_args(["--checkpoint", "best"]).checkpoint == "best"
    assert parser.parse_known_args(["--check", "best"])[1] == ["--check", "best"]
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["--help"])
    assert ended.value.code == 0
    assert "example:\n  maxup try --checkpoint best" in capsys.readouterr().out  # lines stay lines
