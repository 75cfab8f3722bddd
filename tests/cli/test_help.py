"""Every verb explains itself, with an example."""

import pytest

from maxup.cli.main import VERBS, main


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    printed = capsys.readouterr().out
    assert stop.value.code == 0
    assert "example" in printed
    assert f"maxup {verb}" in printed.partition("example")[2]
