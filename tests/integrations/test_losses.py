"""Losses per example are those of the criterion, and of the Trainer for a batch of one example."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F

from maxup.integrations.losses import criterion_per_example, model_loss_per_example, soft_cross_entropy
from tests.integrations.criteria import criteria, one_hot
from tests.integrations.data import bert
from tests.oracles import torchvision_v2

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of timm and transformers


@pytest.fixture(scope="module")
def timm():
    torchvision_v2()
    return pytest.importorskip("timm")


@pytest.fixture(scope="module")
def hf():
    torchvision_v2()
    return pytest.importorskip("transformers")


@pytest.mark.parametrize("name", "plain smoothing soft bce bce-sum torch-smoothing torch-ignore torch-weight".split())
def test_criteria(timm, name):
    criterion, per_example = criteria()[name]
    output, y = torch.randn(6, 4), torch.arange(6) % 4
    y = one_hot(y, 0.3) if name == "soft" else y
    torch.testing.assert_close(criterion_per_example(criterion)(output, y), per_example(output, y))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("kind", "config", "labels"),
    [
        ("ForSequenceClassification", {}, torch.tensor([3])),
        ("ForSequenceClassification", {"num_labels": 1}, torch.tensor([0.3])),
        ("ForSequenceClassification", {}, torch.tensor([[0.0, 1.0, 1.0, 0.0]])),
        ("ForTokenClassification", {}, torch.tensor([[0, 3, -100, 1, -100, 2]])),
        ("ForMaskedLM", {}, torch.tensor([[-100, 3, -100, 11, 12, -100]])),
        ("ForMaskedLM", {"num_labels": 1}, torch.tensor([[-100, 3, -100, 11, 12, -100]])),
        ("LMHeadModel", {"is_decoder": True, "num_labels": 1}, torch.tensor([[5, 3, -100, 11, 12, -100]])),
        ("LMHeadModel", {"is_decoder": True}, torch.tensor([[5, 3, -100, 11, 12, -100]])),
    ],
)
def test_models(hf, tmp_path, kind, config, labels, smoothing):
    if smoothing and labels.is_floating_point():
        pytest.skip("the Trainer smooths class ids only")
    model, ids = bert(hf, kind, **config).eval(), torch.arange(12).view(2, 6) + 7
    args = hf.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[], label_smoothing_factor=smoothing)
    trainer = hf.Trainer(model, args)
    expected = [trainer.compute_loss(model, {"input_ids": row[None], "labels": labels}) for row in ids]
    loss_fn = model_loss_per_example(model, labels, smoothing)
    losses = loss_fn(model(ids).logits, torch.cat([labels, labels]))
    torch.testing.assert_close(losses, torch.stack(expected))


def test_a_subclass_of_a_causal_model_predicts_the_next_token(hf):
    class Mine(hf.GPT2LMHeadModel):
        pass

    ids = {"bos_token_id": None, "eos_token_id": None}
    model = Mine(hf.GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=10, n_positions=8, **ids)).eval()
    tokens = torch.randint(10, (1, 6))
    losses = model_loss_per_example(model, tokens)(model(tokens).logits, tokens)
    torch.testing.assert_close(losses[0], model(tokens, labels=tokens).loss)


@pytest.mark.parametrize("kind", ["ForObjectDetection", "PocketTTSForConditionalGeneration", "Mine"])
def test_unknown_losses(hf, kind):
    with pytest.raises(ValueError, match=f"the loss {kind} is not known per example; pass a per-example loss"):
        model_loss_per_example(SimpleNamespace(loss_type=kind), torch.tensor([0]))


@pytest.mark.parametrize(
    "outputs", [lambda logits: {"loss": None, "logits": logits}, lambda logits: (logits, "states")]
)
def test_mixed_labels(outputs):
    logits, labels = torch.randn(6, 4).bfloat16(), torch.rand(6, 4).softmax(1)
    expected = F.cross_entropy(logits.float(), labels, label_smoothing=0.1)
    torch.testing.assert_close(soft_cross_entropy(outputs(logits), labels, label_smoothing=0.1), expected)
    of_12 = soft_cross_entropy(outputs(logits), labels, torch.tensor(12), label_smoothing=0.1)
    torch.testing.assert_close(of_12, expected / 2)
