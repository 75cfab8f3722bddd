"""Asked to stop: once is a question between steps, twice is now. Left by another process: a sentence."""

import signal
from pathlib import Path

import pytest
from torch.distributed import DistNetworkError

from maxup.engine.stop import RunError, asked_to_stop, losing_peers


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


GLOO = RuntimeError("[/gloo/transport/tcp/pair.cc:537] Connection closed by peer [127.0.0.1]:1234")


@pytest.mark.parametrize(
    ("processes", "error", "changed"),
    [
        (2, GLOO, True),
        (2, DistNetworkError("The client socket has failed"), True),
        (1, GLOO, False),
        (2, RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (2, ValueError("gloo"), False),
        (2, RunError("the loss became nan; gloo"), False),
    ],
)
def test_what_fails_for_want_of_another_process_is_a_sentence(processes, error, changed):
    with pytest.raises((RuntimeError, ValueError)) as caught, losing_peers(processes, Path("run")):
        raise error
    if not changed:
        assert caught.value is error
    else:
        assert isinstance(caught.value, RunError)
        assert str(error) in str(caught.value)
