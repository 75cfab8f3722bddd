import pytest
import torch
from scipy import stats

from maxup import AutoAugment
from maxup.perturb.auto_augment import POLICIES
from maxup.perturb.operations import NUMBER, OPERATIONS
from maxup.perturb.policy import paper_magnitudes
from tests.oracles import torchvision_v2
from tests.tiny import generator


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_match_torchvision(policy):
    torchvision_v2()
    from torchvision.transforms import AutoAugment as Theirs
    from torchvision.transforms import AutoAugmentPolicy

    expected = Theirs(AutoAugmentPolicy(policy))
    ours = [tuple((OPERATIONS[int(o)], p, int(b)) for o, p, b in row) for row in AutoAugment(policy).table]
    assert ours == [tuple((name, p, b or 0) for name, p, b in row) for row in expected.policies]
    table = paper_magnitudes(10, torch.empty(1, 3, 24, 40))
    for name, (values, _) in expected._augmentation_space(10, (24, 40)).items():
        assert torch.equal(table[NUMBER[name]], values.float().expand(10)), name


@pytest.mark.parametrize("policy", POLICIES)
def test_draws_follow_the_policy(policy):
    """Frequencies of all pairs of operations, with Identity for a skipped one, against the table."""
    augment, n = AutoAugment(policy), 20000
    draw = augment.draw((torch.zeros(n, 1, 8, 8), None), generator())
    first, second = draw["operation"].T
    counts = torch.bincount(15 * first + second, minlength=225).view(15, 15)
    expected = torch.zeros(15, 15, dtype=torch.float64)
    for (a, p, _), (b, q, _) in augment.table:
        for one, weight_one in ((a, p), (0, 1 - p)):
            for two, weight_two in ((b, q), (0, 1 - q)):
                expected[int(one), int(two)] += n * weight_one * weight_two / 25
    assert not counts[expected == 0].any()
    possible = expected > 0
    assert stats.chisquare(counts[possible].numpy(), expected[possible].numpy()).pvalue > 0.01


def test_unknown_policies_are_refused():
    with pytest.raises(ValueError, match=r"policy='svhm'\): policy must be one of imagenet, cifar10"):
        AutoAugment("svhm")
