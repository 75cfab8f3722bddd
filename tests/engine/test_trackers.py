"""What trackers hold of a run."""

from tests.engine.test_loop import train


def test_tensorboard_holds_every_step_once(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tmp_path, trackers=["tensorboard"])
    train(tmp_path, trackers=["tensorboard"])  # a finished run begun again: the events are written anew
    events = EventAccumulator(str(next(tmp_path.rglob("events.out.tfevents.*")).parent))
    events.Reload()
    steps = [e.step for e in events.Scalars("test_accuracy")]
    assert steps == sorted(set(steps)) == [4, 8, 12]
