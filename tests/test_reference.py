"""The method against a ten-line reference that keeps every graph, for every perturbation, target and m."""

import pytest
import torch
from torch.nn import functional as F

import maxup as mu
from tests.tiny import ALL_CASES, IN_MODEL, case, generator, gradients, soft


def naive_maxup(model, perturbation, x, y, m, generator):
    """Eq. 2 literally: forward every copy with its graph, and backpropagate the maximum per example."""
    draws = [perturbation.draw((x, y), generator) for _ in range(m)]
    losses = []
    for draw in draws:
        copy, target = perturbation.apply((x, y), draw)
        losses.append(F.cross_entropy(model(copy), target, reduction="none"))
    loss = torch.stack(losses).max(dim=0).values.mean()
    loss.backward()
    return loss.item(), gradients(model)


@pytest.mark.parametrize("m", [1, 2, 5])
@pytest.mark.parametrize("targets", ["index", "probabilities"])
@pytest.mark.parametrize("name", ALL_CASES)
def test_gradients_equal_the_naive_reference(name, targets, m):
    perturbation, model, x, y = case(name)
    y = y if targets == "index" else soft(y)
    expected_loss, expected = naive_maxup(model, perturbation, x, y, m, generator(7))
    ways = {
        "one call": lambda: mu.MaxUp(perturbation, m, generator=generator(7))(model, x.clone(), y),
        "retain": lambda: mu.MaxUp(perturbation, m, strategy="retain", generator=generator(7))(model, x.clone(), y),
        "chunk_size": lambda: mu.MaxUp(perturbation, m, chunk_size=2, generator=generator(7))(model, x.clone(), y),
    }
    for way, loss_of in ways.items():
        model.zero_grad()
        loss = loss_of()
        loss.backward()
        assert loss.item() == pytest.approx(expected_loss, abs=1e-9), way
        assert_close(gradients(model), expected, way)

    model.zero_grad()
    objective = mu.MaxUp(perturbation, m, generator=generator(7))
    with objective.selected(model, x.clone(), y) as (worst_x, worst_y):
        F.cross_entropy(model(worst_x), worst_y).backward()
    assert_close(gradients(model), expected, "selected")

    if name not in IN_MODEL:
        model.zero_grad()
        worst_x, worst_y = mu.MaxUp(perturbation, m, generator=generator(7)).select(model, x.clone(), y)
        F.cross_entropy(model(worst_x), worst_y).backward()
        assert_close(gradients(model), expected, "select")


@pytest.mark.parametrize("name", ALL_CASES)
def test_copies_matter(name):
    """If the perturbation did nothing, the reference would always agree: with m = 5, copy 0 must not win everywhere."""
    perturbation, model, x, y = case(name)
    report = mu.MaxUp(perturbation, 5, generator=generator(7)).run(model, x, y).report
    assert report.gap > 0
    assert report.wins[0] < len(y)
    assert report.replay_exact


def assert_close(actual, expected, way):
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, atol=1e-6, rtol=0, msg=lambda text: f"{way}: {text}")
