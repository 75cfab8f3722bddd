"""The state of modules that `forward=` and `loss_fn=` call is preserved, wherever they are kept."""

import functools
import sys
import types
import weakref
from collections import deque
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from maxup import Gaussian, MaxUp
from maxup.called_modules import called_modules

BODY, X, Y = nn.Linear(5, 8), torch.rand(16, 5), torch.randint(3, (16,))


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.linear(x)


HEAD = Head()
OTHERS = types.ModuleType("others")
OTHERS.head = HEAD
HEADS = deque([HEAD])


@dataclass(slots=True)
class Slots:
    head: nn.Module

    def forward(self, body, x):
        return self.head(body(x))


class OfClass:
    head = HEAD

    def forward(self, body, x):
        return self.head(body(x))


class OfMethods:
    head = HEAD

    @classmethod
    def of_class(cls, body, x):
        return cls.head(body(x))

    @staticmethod
    def static(body, x):
        return OfMethods.head(body(x))


class Callable:
    def __call__(self, body, x):
        return HEAD(body(x))


def in_loop(body, x):
    return sum([HEAD(part) for part in body(x)[None]])


def of_module(body, x):
    return OTHERS.head(body(x))


def in_deque(body, x):
    return HEADS[0](body(x))


FORWARDS = {
    "slots": Slots(HEAD).forward, "class": OfClass().forward, "call": Callable(), "loop": in_loop, "module": of_module,
    "deque": in_deque, "class method": OfMethods.of_class, "static method": OfMethods.static,
}  # fmt: skip


@pytest.mark.parametrize("place", FORWARDS)
def test_modules_are_found_wherever_they_are_kept(place):
    HEAD.calls.zero_()
    MaxUp(Gaussian(0.1), m=4, forward=FORWARDS[place])(BODY, X, Y)
    assert HEAD.calls == 1  # by the training pass


class Logs:
    """Keeps a head beside lists that grow with every step."""

    def __init__(self, kinds):
        self.logs = [[] for _ in range(kinds)]
        self.heads = {"main": [Head()]}

    def forward(self, body, x):
        return self.heads["main"][0](body(x))

    def log(self, entries):
        for log in self.logs:
            log += entries


@pytest.mark.parametrize("entries", [[0.0] * 1000, [{"loss": [0.0]} for _ in range(1000)]], ids=["numbers", "records"])
def test_modules_stay_known_while_logs_grow(entries):
    trainer = Logs(kinds=99)
    objective = MaxUp(Gaussian(0.1), m=4, forward=trainer.forward)
    for step in range(3):
        objective(BODY, X, Y)
        assert trainer.heads["main"][0].calls == step + 1
        trainer.log(entries)


def test_a_module_that_is_gone_is_forgotten():
    trainer = Logs(kinds=0)
    objective = MaxUp(Gaussian(0.1), m=4, forward=trainer.forward)
    objective(BODY, X, Y)
    gone = weakref.ref(trainer.heads["main"][0])
    trainer.heads["main"][0] = Head()
    objective(BODY, X, Y)
    assert gone() is None


class NoAttributes:
    __slots__ = ("unused",)

    def __getattr__(self, name):
        raise KeyError(name)


class Unbound:
    """Like a proxy that is used outside of its context."""

    @property
    def __class__(self):
        raise RuntimeError("outside of its context")

    @property
    def __dict__(self):
        raise RuntimeError("outside of its context")


class Archive(dict):
    """Like a file whose arrays are read on demand."""

    def values(self):
        raise AssertionError("read")


class Unreadable(list):
    def __iter__(self):
        raise AssertionError("read")


def nameless():
    module = types.ModuleType("nameless")
    del module.__name__
    return module


def dead_proxy():
    return weakref.proxy(Head())


OBJECTS = {
    "slots": NoAttributes,
    "unbound": Unbound,
    "archive": Archive,
    "list": Unreadable,
    "module": nameless,
    "proxy": dead_proxy,
    "lazy": lambda: nn.LazyLinear(3),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_other_objects_do_no_harm(kind):
    other, head = OBJECTS[kind](), Head()

    def forward(body, x):
        assert other is not None
        return head(body(x))

    MaxUp(Gaussian(0.1), m=4, forward=forward)(BODY, X, Y)
    assert head.calls == 1


def test_parts_beside_an_uninitialized_one_are_preserved():
    norm = nn.BatchNorm1d(8)
    owner = nn.ModuleDict({"norm": norm, "last": nn.Linear(8, 3), "unused": nn.LazyLinear(3)})
    MaxUp(Gaussian(0.1), m=4, forward=lambda body, x: owner["last"](norm(body(x))))(BODY, X, Y)
    assert norm.num_batches_tracked == 1


def test_a_class_is_searched_once():
    large = type("Large", (), {f"setting{i}": i for i in range(400)})
    layer, many = nn.Linear(2, 2), [large() for _ in range(100)]
    assert calls(functools.partial(print, many, layer)) < 10_000


def test_functions_without_a_module_can_be_searched():
    names = {}
    exec("def loss_fn(output, target):\n    return output.sum(1)", names)
    names["loss_fn"].__module__ = None
    assert called_modules(names["loss_fn"]) == []
    MaxUp(Gaussian(0.1), m=2, loss_fn=names["loss_fn"])(nn.Linear(4, 3), torch.rand(5, 4), torch.zeros(5))


def calls(function):
    """The number of calls during a search."""
    events = 0

    def count(frame, event, argument):
        nonlocal events
        events += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        called_modules(function)
    finally:
        sys.setprofile(None)
    return events


def test_the_search_takes_a_limited_time():
    deep = [[[list(range(100)) for _ in range(100)] for _ in range(100)]]
    layer, many = nn.Linear(2, 2), [[[i]] for i in range(5000)]
    function = functools.partial(print, deep, layer, *many)
    assert called_modules(function) == [layer]
    assert calls(function) < 50_000
