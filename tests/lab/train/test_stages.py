import pytest

from maxup.lab.recipes.schema import Optim
from maxup.lab.train.stages import Stages


def optim(**changes):
    return Optim(**({"name": "asgd", "schedule": "constant", "average_from": None} | changes))


def triggered(values, patience):
    """The published rule, naively: the first epoch worse than the best of all but the last few before it."""
    for epoch, value in enumerate(values):
        before = values[:epoch]
        if len(before) > patience and value > min(before[:-patience]):
            return epoch + 1
    return None


FALLING = [100.0, 80.0, 70.0, 65.0, 66.0, 64.0, 65.5, 66.5, 64.5, 66.0, 67.0]


@pytest.mark.parametrize("patience", [1, 2, 3, 5])
@pytest.mark.parametrize("lower_is_better", [True, False])
def test_averaging_begins_at_the_non_monotone_trigger(patience, lower_is_better):
    stages, began = Stages(optim(patience=patience), 100, lower_is_better=lower_is_better), None
    for epoch, value in enumerate(FALLING, 1):
        stages.check(epoch, value if lower_is_better else -value)
        began = began or (epoch if stages.averaging else None)
        assert not stages.over
    assert began == triggered(FALLING, patience)


def test_averaging_at_a_fixed_part_of_the_epochs():
    stages, seen = Stages(optim(average_from=0.4), 10, lower_is_better=True), []
    for epoch in range(1, 11):
        seen.append(stages.averaging)  # in this epoch
        stages.check(epoch, 1.0)
    assert seen == [False] * 4 + [True] * 6
    assert Stages(optim(average_from=0.0), 10, lower_is_better=True).averaging
    assert not Stages(Optim(), 10, lower_is_better=True).averaging


@pytest.mark.parametrize(("part", "epochs"), [(0.55, 100), (0.07, 100), (0.14, 50)])
def test_averaging_begins_after_a_whole_number_of_epochs_in_spite_of_rounding(part, epochs):
    stages, wanted = Stages(optim(average_from=part), epochs, lower_is_better=True), round(part * epochs)
    for epoch in range(1, wanted + 1):
        assert not stages.averaging
        stages.check(epoch, 1.0)
    assert stages.averaging


def test_restarts_stop_when_nothing_improves_or_after_as_many_epochs():
    stages, epoch, ends = Stages(optim(patience=2, restarts=2), 5, lower_is_better=True), 0, []
    script = iter([9.0, 8, 7, 6, 5, 5.0, 4.9, 4.8, 5.2, 5.3, 4.7, 4.6, 4.5, 4.4, 4.3])
    while not stages.done:
        if stages.over:
            ends.append((stages.stage, epoch))
            stages.next(epoch)
            continue
        epoch += 1
        stages.check(epoch, next(script))
    assert ends == [(0, 5), (1, 9), (2, 14)]  # 5.2 is worse than 5.0
    assert stages.longest == 15


def test_a_state_is_taken_up():
    one, two = (Stages(optim(patience=1, restarts=1), 5, lower_is_better=True) for _ in range(2))
    for epoch, value in enumerate((3.0, 4.0, 5.0), 1):
        one.check(epoch, value)
    two.load_state_dict(one.state_dict())
    assert two.state_dict() == one.state_dict()
    assert two.averaging
    with pytest.raises(KeyError):
        two.load_state_dict({"stage": 1})


def test_restarts_need_averaging():
    with pytest.raises(ValueError, match=r"set optim\.name=asgd"):
        Stages(Optim(restarts=1), 5, lower_is_better=True)
    with pytest.raises(ValueError, match="both average the weights"):
        Stages(optim(ema=0.9), 5, lower_is_better=True)
    with pytest.raises(ValueError, match=r"optim\.ema and optim\.lookahead both average the weights"):
        Stages(Optim(ema=0.9, lookahead=5), 5, lower_is_better=True)


def test_every_kth_epoch_and_the_last_one_are_evaluated():
    stages, evaluated = Stages(Optim(), 10, lower_is_better=True, eval_every=4), []
    for epoch in range(1, 11):
        assert not stages.over
        evaluated += [epoch] if stages.should_evaluate(epoch) else []
        stages.check(epoch, 1.0 if stages.should_evaluate(epoch) else None)
    assert evaluated == [4, 8, 10]
    assert stages.over


@pytest.mark.parametrize("changes", [{"average_from": None}, {"average_from": 0.5, "restarts": 1}])
def test_stages_that_need_every_evaluation_refuse_to_skip_some(changes):
    with pytest.raises(ValueError, match="set eval_every=1"):
        Stages(optim(**changes), 10, lower_is_better=True, eval_every=2)
