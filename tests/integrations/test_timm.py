"""MaxUpTask trains as a hand-written loop does, in a loop shaped like timm's training script."""

import sys
from importlib import import_module

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import maxup as mu
from tests.integrations.criteria import criteria, cross_entropy
from tests.integrations.data import Nothing, assert_equal, generator, images
from tests.oracles import torchvision_v2

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of timm


@pytest.fixture(scope="module")
def timm():
    torchvision_v2()
    return pytest.importorskip("timm")


@pytest.fixture
def task_class(timm):
    from maxup.integrations.timm import MaxUpTask

    return MaxUpTask


def build(timm):
    torch.manual_seed(0)
    settings = {"num_classes": 4, "img_size": 8, "patch_size": 4, "embed_dim": 12, "depth": 1, "num_heads": 2}
    return timm.models.VisionTransformer(drop_rate=0.2, **settings)


def batches():
    return [torch.utils.data.default_collate(images(24)[start : start + 4]) for start in range(0, 24, 4)]


def worst(perturbation, m=4, **options):
    return mu.MaxUp(perturbation, m=m, generator=generator(), **options)


def train(timm, task, data, *, epochs=(0, 1), optimizer=None, accumulate=1):
    """The loop of timm's training script, with its optimizer, schedule and EMA."""
    from timm.optim import create_optimizer_v2
    from timm.scheduler import create_scheduler_v2

    optimizer = optimizer or create_optimizer_v2(task.get_trainable_module(), opt="sgd", lr=0.1, momentum=0.9)
    updates = len(data) // accumulate
    scheduler, _ = create_scheduler_v2(optimizer, "cosine", num_epochs=4, step_on_epochs=False,
                                       updates_per_epoch=updates)  # fmt: skip
    if epochs:
        scheduler.step_update(num_updates=epochs[0] * updates)
    for epoch in epochs:
        task.train()
        torch.manual_seed(epoch)
        for number, (input, target) in enumerate(data, 1):
            result = task(input, target)
            (result["loss"] / accumulate).backward()
            if number % accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
                task.update_ema()
                scheduler.step_update(num_updates=epoch * updates + number // accumulate)
    return optimizer


class ByHand(nn.Module):
    """A task that calls an objective by hand, with a loss per batch."""

    def __init__(self, timm, objective, loss):
        super().__init__()
        self.model, self.objective, self.loss = build(timm), objective, loss

    def forward(self, x, y):
        x, y = self.objective.select(self.model, x, y)
        return {"loss": self.loss(self.model(x), y)}

    def get_trainable_module(self):
        return self.model

    def update_ema(self):
        pass


@pytest.mark.parametrize("name", ["plain", "smoothing", "soft", "bce", "bce-sum", "torch-smoothing"])
@pytest.mark.parametrize("mixed", [False, True])
def test_equals_a_loop_by_hand(timm, task_class, name, mixed):
    if name == "soft" and not mixed:
        pytest.skip("timm's criterion needs probabilities")
    criterion, per_example = criteria()[name]
    perturbation = mu.CutMix(4) if mixed else mu.Gaussian(0.3)
    task = task_class(build(timm), criterion, maxup=worst(perturbation), verbose=False)
    task.setup_ema(decay=0.9)
    train(timm, task, batches(), accumulate=2)
    same = worst(perturbation, loss_fn=per_example)
    expected = ByHand(timm, same, lambda output, y: per_example(output, y).mean())
    train(timm, expected, batches(), accumulate=2)
    for mine, theirs in zip(task.get_trainable_module().parameters(), expected.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)
    assert task.maxup.loss_fn is mu.cross_entropy  # the objective is as the user created it


def test_the_criterion_trains_also_if_another_loss_scores(timm, task_class):
    x, y = batches()[0]
    criterion, perturbation = timm.loss.LabelSmoothingCrossEntropy(0.5), mu.CutMix(4)
    model = build(timm).eval()
    task = task_class(model, criterion, maxup=worst(perturbation, m=1, loss_fn=cross_entropy()), verbose=False)
    task.training = True
    mixed = perturbation.apply((x, y), perturbation.draw((x, y), generator()))
    expected = F.cross_entropy(model(mixed[0]), mixed[1], label_smoothing=0.5)
    torch.testing.assert_close(task(x, y)["loss"], expected)


def test_m_1_without_perturbation_equals_the_bare_task(timm, task_class):
    from timm.task import ClassificationTask

    loss = timm.loss.LabelSmoothingCrossEntropy(0.1)
    task = task_class(build(timm), loss, maxup=worst(Nothing(), m=1), verbose=False)
    bare = ClassificationTask(build(timm), loss, verbose=False)
    for one in (task, bare):
        train(timm, one, batches())
    assert_equal(task, bare)


def test_timms_script_creates_the_task_by_keyword_and_logs_it(timm, task_class, caplog):
    objective = worst(mu.Cutout(4))
    with caplog.at_level("INFO"):
        task = task_class(
            model=build(timm), criterion=nn.CrossEntropyLoss(), device=torch.device("cpu"), dtype=None, verbose=True,
            maxup=objective,
        )  # fmt: skip
    assert caplog.messages == [
        "ClassificationTask: criterion=CrossEntropyLoss",
        f"MaxUpTask: training with {objective}",
    ]
    assert task.maxup is objective


def test_evaluation_is_unchanged(timm, task_class):
    task = task_class(build(timm), nn.CrossEntropyLoss(), maxup=worst(mu.Gaussian(0.3)), verbose=False).eval()
    x, y = batches()[0]
    assert torch.equal(task(x, y)["output"], task.get_eval_model()(x))
    assert task.maxup.step == 0


@pytest.mark.slow
def test_compiled(timm, task_class):
    compiled, eager = (
        task_class(build(timm), nn.CrossEntropyLoss(), maxup=worst(mu.Gaussian(0.3)), verbose=False) for _ in range(2)
    )
    compiled.compile(backend="eager")
    for task in (compiled, eager):
        train(timm, task, batches()[:2], epochs=[0])
    assert_equal(compiled, eager)


def test_resumed_equals_unstopped(timm, task_class, tmp_path):
    from timm.task import resume_task_checkpoint
    from timm.utils import CheckpointSaver

    def create():
        objective = worst(mu.Gaussian(0.3))
        return task_class(build(timm), nn.CrossEntropyLoss(), maxup=objective, verbose=False)

    whole, first, second = create(), create(), create()
    train(timm, whole, batches(), epochs=[0, 1])
    optimizer = train(timm, first, batches(), epochs=[0])
    CheckpointSaver(first.get_trainable_module(), optimizer, checkpoint_dir=str(tmp_path), task=first).save_checkpoint(
        0
    )
    optimizer = train(timm, second, batches(), epochs=[])
    epoch = resume_task_checkpoint(second, str(tmp_path / "last.pth.tar"), optimizer)
    train(timm, second, batches(), epochs=[epoch], optimizer=optimizer)
    assert epoch == 1
    assert_equal(second, whole)


def test_messages(timm, task_class, monkeypatch):
    objective = worst(mu.Gaussian(0.3))
    with pytest.raises(TypeError, match="MaxUpTask expects a MaxUp objective"):
        task_class(build(timm), nn.CrossEntropyLoss(), maxup=mu.Gaussian(0.3))
    for criterion in (timm.loss.JsdCrossEntropy(), timm.loss.AsymmetricLossMultiLabel(), F.cross_entropy):
        with pytest.raises(ValueError, match=r"the criterion \w+ is not known per example; pass a per-example loss"):
            task_class(build(timm), criterion, maxup=objective)
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.delitem(sys.modules, "maxup.integrations.timm")
    with pytest.raises(ImportError, match=r"MaxUpTask needs timm, which is not installed: pip install 'maxup\[timm\]'"):
        import_module("maxup.integrations.timm")
