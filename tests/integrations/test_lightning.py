"""MaxUpCallback trains as a hand-written loop does, and a resumed run as one that never stopped."""

import logging
import sys
from importlib import import_module
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import maxup as mu
from tests.integrations.data import Nothing, assert_equal, generator, images
from tests.oracles import torchvision_v2

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of Lightning
QUIET = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}


@pytest.fixture(scope="module")
def pl():
    torchvision_v2()
    return pytest.importorskip("pytorch_lightning")


@pytest.fixture
def callback(pl):
    from maxup.integrations.lightning import MaxUpCallback

    return MaxUpCallback


def build(pl, step=None, net=None):
    """A classifier with dropout, and the `training_step` of a user."""

    class Classifier(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net or nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.Dropout(0.3), nn.Linear(16, 4))

        def forward(self, x):
            return self.net(x)

        def training_step(self, batch, batch_idx):
            x, y = batch
            return F.cross_entropy(self(x), y)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    if step:
        Classifier.training_step = step
    torch.manual_seed(0)
    return Classifier()


def fit(pl, module, callbacks, *, collate=None, start=None, **options):
    options = {"max_epochs": 1, "enable_checkpointing": False, **QUIET, **options}
    trainer = pl.Trainer(callbacks=callbacks, **options)
    torch.manual_seed(1)
    trainer.fit(module, DataLoader(images(16), batch_size=4, collate_fn=collate), ckpt_path=start)
    return trainer


def objective(m=4, perturbation=None):
    return mu.MaxUp(perturbation or mu.Gaussian(0.3), m=m, generator=generator())


def by_hand(module, objective, epochs=1, accumulate=1):
    optimizer = module.configure_optimizers()
    torch.manual_seed(1)
    for _ in range(epochs):
        for number, (x, y) in enumerate(DataLoader(images(16), batch_size=4), 1):
            with objective.selected(module, x, y) as (x, y):
                (F.cross_entropy(module(x), y) / accumulate).backward()
            if number % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
    return module


@pytest.mark.parametrize("accumulate", [1, 2])
def test_equals_a_loop_by_hand(pl, callback, accumulate):
    module = build(pl)
    fit(pl, module, [callback(objective())], accumulate_grad_batches=accumulate)
    assert_equal(module, by_hand(build(pl), objective(), accumulate=accumulate))


def test_m_1_without_perturbation_equals_the_bare_trainer(pl, callback):
    with_callback, bare = build(pl), build(pl)
    fit(pl, with_callback, [callback(objective(1, Nothing()))])
    fit(pl, bare, [])
    assert_equal(with_callback, bare)


def test_the_objective_is_logged_once(pl, callback, caplog, monkeypatch):
    logger = logging.getLogger("pytorch_lightning")
    monkeypatch.setattr(logger, "propagate", False)  # otherwise pytest may see messages twice
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    worst = objective()
    fit(pl, build(pl), [callback(worst)])
    assert [line for line in caplog.messages if "MaxUp" in line] == [f"MaxUpCallback: training with {worst}"]


def test_a_batch_of_named_entries(pl, callback):
    def step(self, batch, batch_idx):
        assert batch["id"] == ["a"] * 4
        return F.cross_entropy(self(batch["image"]), batch["target"])

    def collate(pairs):
        x, y = torch.utils.data.default_collate(pairs)
        return {"image": x, "target": y, "id": ["a"] * 4}

    module = build(pl, step)
    fit(pl, module, [callback(objective(), x="image", y="target")], collate=collate)
    assert_equal(module, by_hand(build(pl), objective()))


def test_a_dict_without_keys_passes_all_inputs(pl, callback):
    def step(self, batch, batch_idx):
        return F.cross_entropy(self(batch["x"]), batch["labels"])

    module = build(pl, step)
    worst = mu.MaxUp(
        mu.Gaussian(0.3, key="x"), m=4, forward=lambda model, inputs: model(inputs["x"]), generator=generator()
    )
    collate = torch.utils.data.default_collate
    fit(pl, module, [callback(worst)], collate=lambda pairs: dict(zip(("x", "labels"), collate(pairs), strict=True)))
    assert_equal(module, by_hand(build(pl), objective()))


def test_manual_optimization(pl, callback):
    def step(self, batch):
        optimizer = self.optimizers()
        loss = F.cross_entropy(self(batch[0]), batch[1])
        self.manual_backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    module = build(pl, step)
    module.automatic_optimization = False
    fit(pl, module, [callback(objective())])
    assert_equal(module, by_hand(build(pl), objective()))


def test_scores_in_the_precision_of_the_step(pl, callback):
    types = []
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
    net.register_forward_hook(lambda module, args, output: types.append((torch.is_grad_enabled(), output.dtype)))
    fit(pl, build(pl, net=net), [callback(objective(2))], precision="bf16-mixed", limit_train_batches=2)
    assert {dtype for _, dtype in types} == {torch.bfloat16}
    assert [graph for graph, _ in types].count(True) == 2


@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "bf16-mixed"])
def test_m_1_equals_the_bare_trainer_in_every_precision(pl, callback, precision):
    with_callback, bare = build(pl), build(pl)
    fit(pl, with_callback, [callback(mu.MaxUp(Nothing(), m=1))], precision=precision)
    fit(pl, bare, [], precision=precision)
    assert_equal(with_callback, bare)


@pytest.mark.parametrize("model", ["net", lambda module: module.net])
def test_scores_with_another_model(pl, callback, model):
    def step(self, batch, batch_idx):
        return F.cross_entropy(self.net(batch[0]), batch[1])

    module = build(pl, step)
    del type(module).forward
    with pytest.raises(TypeError, match=r"has no forward to score copies with; pass MaxUpCallback\(..., model="):
        fit(pl, module, [callback(objective())])
    fit(pl, module, [callback(objective(), model=model)])
    assert_equal(module, by_hand(build(pl), objective()))


def test_a_module_of_the_other_package_without_forward(pl, callback, monkeypatch):
    """`lightning` installs both packages, and MaxUpCallback is imported before the user imports one of them."""

    class LightningModule(torch.nn.Module):
        def forward(self):
            raise NotImplementedError

    other = ModuleType("lightning.pytorch")
    other.LightningModule = LightningModule
    monkeypatch.setitem(sys.modules, "lightning.pytorch", other)
    module = type("Classifier", (LightningModule,), {"training_step": lambda self, batch: None})()
    with pytest.raises(TypeError, match="Classifier has no forward to score copies with"):
        callback(objective()).on_fit_start(SimpleNamespace(strategy=None, world_size=1), module)


def test_in_model_perturbation(pl, callback):
    def noisy():
        noise = mu.FeatureNoise(0.5, layer="net.1")
        return noise.attach(build(pl)), mu.MaxUp(noise, m=4, generator=generator())

    (module, worst), (expected, same) = noisy(), noisy()
    fit(pl, module, [callback(worst)])
    assert_equal(module, by_hand(expected, same))


@pytest.mark.slow
def test_compiled_module(pl, callback):
    module = build(pl)
    fit(pl, torch.compile(module, backend="eager"), [callback(objective())])
    assert_equal(module, by_hand(build(pl), objective()))


def test_resumed_equals_unstopped(pl, callback, tmp_path):
    class Reseed(pl.Callback):  # for dropout, because Lightning does not save the global random state
        def on_train_batch_start(self, trainer, *args):
            torch.manual_seed(trainer.global_step)

    whole, first, second = build(pl), build(pl), build(pl)
    fit(pl, whole, [callback(objective()), Reseed()], max_epochs=2)
    trainer = fit(pl, first, [callback(objective()), Reseed()], max_epochs=1)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    fit(pl, second, [callback(objective()), Reseed()], max_epochs=2, start=tmp_path / "a.ckpt")
    assert_equal(second, whole)


def test_training_step_is_restored_even_after_an_error(pl, callback):
    def step(self, batch, batch_idx):
        raise RuntimeError("broken step")

    module = build(pl, step)
    with pytest.raises(RuntimeError, match="broken step"):
        fit(pl, module, [callback(objective())])
    assert "training_step" not in vars(module)


def test_messages(pl, callback):
    with pytest.raises(TypeError, match="MaxUpCallback expects a MaxUp objective, but got Average"):
        callback(mu.Average(mu.Gaussian(0.1), m=2))
    with pytest.raises(ValueError, match="selects before the trainer's forward pass"):
        callback(mu.MaxUp(mu.Gaussian(0.1), strategy="retain"))
    with pytest.raises(TypeError, match=r"but got a Tensor; name the entries with MaxUpCallback\(..., x=, y=\)"):
        fit(pl, build(pl), [callback(objective())], collate=lambda pairs: torch.rand(4, 3))


def test_a_model_that_the_module_lacks(pl, callback):
    with pytest.raises(AttributeError, match="Classifier has no attribute `zzz`"):
        fit(pl, build(pl), [callback(objective(), model="zzz")])
    with pytest.raises(TypeError, match="model=3: pass the name of a submodule of your module, or a function of it"):
        callback(objective(), model=3)


def test_a_step_that_reads_the_loader_is_refused(pl, callback):
    def step(self, dataloader_iter):
        raise AssertionError

    module = build(pl, step)
    with pytest.raises(TypeError, match=r"takes dataloader_iter, but MaxUpCallback needs training_step\(batch\)"):
        fit(pl, module, [callback(objective())])
    assert "training_step" not in vars(module)


@pytest.mark.parametrize("name", ["DeepSpeedStrategy", "FSDPStrategy", "ModelParallelStrategy"])
def test_unsupported_strategy(pl, callback, name):
    strategy = type("Custom", (getattr(pl.strategies, name),), {"__init__": lambda self: None})()
    trainer = SimpleNamespace(strategy=strategy, world_size=1)
    with pytest.raises(ValueError, match=f"does not support {name}; use DDPStrategy"):
        callback(objective()).on_fit_start(trainer, build(pl))


def import_again(monkeypatch, **packages):
    """Import the module again with these packages; None is one that is not installed."""
    for name, module in packages.items():
        if module is not None:
            module.__spec__ = SimpleNamespace()
        monkeypatch.setitem(sys.modules, name.replace("__", "."), module)
    monkeypatch.delitem(sys.modules, "maxup.integrations.lightning")
    return import_module("maxup.integrations.lightning")


def test_lightning_is_used_if_it_was_imported(callback, monkeypatch):
    package, pytorch = ModuleType("lightning"), ModuleType("lightning.pytorch")
    pytorch.Callback = type("Callback", (), {})
    monkeypatch.delitem(sys.modules, "pytorch_lightning")
    module = import_again(monkeypatch, lightning=package, lightning__pytorch=pytorch)
    assert issubclass(module.MaxUpCallback, pytorch.Callback)


def test_without_lightning(callback, monkeypatch):
    with pytest.raises(ImportError, match=r"needs lightning, which is not installed: pip install 'maxup\[lightning\]'"):
        import_again(monkeypatch, pytorch_lightning=None, lightning=None)
