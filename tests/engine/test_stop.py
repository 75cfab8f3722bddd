"""Asked to stop: once is a question between steps, twice is now."""

import signal

import pytest

from maxup.engine.stop import asked_to_stop


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_once_is_a_question_and_twice_is_now(number):
    before = signal.getsignal(number)
    with asked_to_stop() as asked:
        assert not asked()
        signal.raise_signal(number)
        assert asked()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before
