"""MaxUpTrainer trains as a hand-written loop does, and a resumed run as one that never stopped."""

import json
import logging
import sys
from functools import partial
from importlib import import_module

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, SequentialSampler

import maxup as mu
from tests.integrations.data import Nothing, assert_equal, bert, generator, images, vit
from tests.oracles import torchvision_v2

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of transformers
COLLATE = torch.utils.data.default_collate


@pytest.fixture(scope="module")
def hf():
    torchvision_v2()
    return pytest.importorskip("transformers")


@pytest.fixture
def trainer_class(hf):
    from maxup.integrations.transformers import MaxUpTrainer

    return MaxUpTrainer


def pictures():
    return [{"pixel_values": x, "labels": y} for x, y in images()]


def sentences():
    ids = torch.randint(5, 30, (24, 6), generator=generator(0))
    mask = torch.ones(24, 6, dtype=torch.long)
    return [{"input_ids": ids[i], "attention_mask": mask[i], "labels": i % 4} for i in range(24)]


def fit(hf, kind, model, data, folder, *, start=None, options=None, **settings):
    """Train on the data in order; return the trainer."""

    class InOrder(kind):
        def _get_train_sampler(self, *args):
            return SequentialSampler(self.train_dataset)

    settings = {
        "per_device_train_batch_size": 4, "max_steps": 3, "learning_rate": 0.1, "lr_scheduler_type": "constant",
        "optim": "sgd", "max_grad_norm": 0.0, "report_to": [], "use_cpu": True, "save_strategy": "no",
        "disable_tqdm": True, **settings,
    }  # fmt: skip
    args = hf.TrainingArguments(output_dir=str(folder), **settings)
    trainer = InOrder(model, args, train_dataset=data, **(options or {}))
    trainer.train(resume_from_checkpoint=start)
    return trainer


def worst(perturbation, m=4, **options):
    return mu.MaxUp(perturbation, m=m, generator=generator(), **options)


def by_hand(model, data, objective, loss=F.cross_entropy, accumulate=1, steps=3):
    """Take the same steps in a loop; `loss` is that of the user."""
    torch.manual_seed(42)  # the Trainer's seed, for dropout
    objective.forward = lambda model, x: model(**x).logits
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = list(DataLoader(data, batch_size=4, generator=generator()))[: steps * accumulate]
    for number, batch in enumerate(batches, 1):
        with objective.selected(model, batch, batch.pop("labels")) as (x, y):
            (loss(model(**x).logits, y) / accumulate).backward()
        if number % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    return model


def assert_close(one, other):
    for mine, theirs in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(theirs, mine, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("accumulate", "mixed", "smoothing"), [(1, False, 0.0), (1, True, 0.0), (2, False, 0.2), (2, True, 0.2)]
)
def test_images_equal_a_loop_by_hand(hf, trainer_class, tmp_path, accumulate, mixed, smoothing):
    def noise():
        return mu.CutMix(4, key="pixel_values") if mixed else mu.Gaussian(0.3, key="pixel_values")

    model = vit(hf)
    options = {"maxup": worst(noise())}
    steps = 3 if accumulate == 1 else 2
    fit(hf, trainer_class, model, pictures(), tmp_path, options=options, label_smoothing_factor=smoothing,
        gradient_accumulation_steps=accumulate, max_steps=steps)  # fmt: skip
    loss = partial(F.cross_entropy, label_smoothing=smoothing)
    same = worst(noise(), loss_fn=partial(loss, reduction="none"))
    assert_close(model, by_hand(vit(hf), pictures(), same, loss, accumulate, steps))
    assert options["maxup"].loss_fn is mu.cross_entropy  # the objective is as the user created it


def text_perturbations():
    layer = "bert.embeddings.word_embeddings"
    return {
        "words": mu.EmbeddingDropout(0.3, layer=layer, keep=[5, 6]),
        "noise": mu.FeatureNoise(0.3, layer=layer),
        "tokens": mu.TokenDropout(0.3, mask_id=4, keep=[5, 6], key="input_ids"),
    }


@pytest.mark.parametrize("name", text_perturbations())
def test_text_equals_a_loop_by_hand(hf, trainer_class, tmp_path, name):
    inside, same = text_perturbations()[name], text_perturbations()[name]
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model, expected = bert(hf, **still), bert(hf, **still)
    if hasattr(inside, "attach"):
        inside.attach(model)
        same.attach(expected)
    fit(hf, trainer_class, model, sentences(), tmp_path, options={"maxup": worst(inside)})
    assert_close(model, by_hand(expected, sentences(), worst(same)))


def sequence_to_sequence(hf, name):
    torch.manual_seed(0)
    ids = {"vocab_size": 30, "d_model": 16, "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 2}
    sizes = {
        "T5": {"d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0},
        "Bart": {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
                 "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "dropout": 0.0, "bos_token_id": 2,
                 "forced_eos_token_id": 1},
    }  # fmt: skip
    return getattr(hf, f"{name}ForConditionalGeneration")(getattr(hf, f"{name}Config")(**ids, **sizes[name]))


@pytest.mark.parametrize("name", ["T5", "Bart"])
def test_sequence_to_sequence_equals_a_loop_by_hand(hf, trainer_class, tmp_path, name):
    """The models make the decoder's inputs from the labels, which scoring does not pass."""
    labels = torch.randint(5, 30, (24, 6), generator=generator(1))
    labels[::3, 4:] = -100
    data = [{**row, "labels": labels[i]} for i, row in enumerate(sentences())]
    model, dropout = sequence_to_sequence(hf, name), text_perturbations()["tokens"]
    fit(hf, trainer_class, model, data, tmp_path, options={"maxup": worst(dropout)})

    expected = sequence_to_sequence(hf, name).train()
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    same = worst(dropout, loss_fn=mu.token_cross_entropy)
    for batch in list(DataLoader(data, batch_size=4))[:3]:
        y = batch.pop("labels")
        same.forward = lambda model, x, y=y: model(**x, labels=y).logits
        x, _ = same.select(expected, batch, y)
        expected(**x, labels=y).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert_close(model, expected)


def test_custom_loss(hf, trainer_class, tmp_path):
    def squared(output, y):
        return (output.softmax(1) - F.one_hot(y, 4)).square().sum(1)

    def loss_func(outputs, labels, num_items_in_batch):
        return squared(outputs.logits, labels).sum() / num_items_in_batch

    model, noise = vit(hf), mu.Gaussian(0.3, key="pixel_values")
    options = {"maxup": worst(noise, loss_fn=squared), "compute_loss_func": loss_func}
    fit(hf, trainer_class, model, pictures(), tmp_path, options=options, gradient_accumulation_steps=2, max_steps=2)
    same = worst(noise, loss_fn=squared)
    assert_close(model, by_hand(vit(hf), pictures(), same, lambda o, y: squared(o, y).mean(), 2, 2))


def test_scores_in_the_precision_of_the_step(hf, trainer_class, tmp_path):
    model, types = vit(hf), []
    model.classifier.register_forward_hook(lambda *args: types.append((torch.is_grad_enabled(), args[2].dtype)))
    options = {"maxup": worst(mu.Gaussian(0.3, key="pixel_values"), m=2)}
    fit(hf, trainer_class, model, pictures(), tmp_path, options=options, bf16=True, max_steps=1)
    assert {dtype for _, dtype in types} == {torch.bfloat16}
    assert [graph for graph, _ in types].count(True) == 1


@pytest.mark.parametrize("mixed", [False, True])
def test_accumulation_for_a_model_that_ignores_num_items_in_batch(hf, trainer_class, tmp_path, mixed):
    """BERT's classifiers return a mean, so that the Trainer has to be told to divide it."""

    class Divide(trainer_class):
        loss_is_scaled_for_ga = False

    def noisy():
        layer = "bert.pooler.dense"
        noise = mu.ManifoldMixup([layer], 4) if mixed else mu.FeatureNoise(0.3, layer=layer)
        model = bert(hf, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        return noise.attach(model), worst(noise)

    (model, objective), (expected, same) = noisy(), noisy()
    fit(hf, Divide, model, sentences(), tmp_path, options={"maxup": objective}, max_steps=2,
        gradient_accumulation_steps=3)  # fmt: skip
    assert_close(model, by_hand(expected, sentences(), same, accumulate=3, steps=2))


@pytest.mark.parametrize("perturbation", ["noise", "mixup"])
def test_perturbations_in_a_checkpointed_layer_equal_a_loop_without_checkpoints(
    hf, trainer_class, tmp_path, perturbation
):
    """The Trainer calls backward, which repeats the layer, after the selection has ended."""

    def noisy():
        layer = "bert.encoder.layer.0.intermediate.dense"
        noise = mu.ManifoldMixup([layer], 4) if perturbation == "mixup" else mu.FeatureNoise(0.3, layer=layer)
        model = bert(hf, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        return noise.attach(model), worst(noise)

    (model, objective), (expected, same) = noisy(), noisy()
    fit(hf, trainer_class, model, sentences(), tmp_path, options={"maxup": objective}, gradient_checkpointing=True)
    assert model.is_gradient_checkpointing
    assert_close(model, by_hand(expected, sentences(), same))


@pytest.mark.parametrize("settings", [{}, {"label_smoothing_factor": 0.1, "gradient_accumulation_steps": 3}])
def test_m_1_without_perturbation_equals_the_bare_trainer(hf, trainer_class, tmp_path, settings):
    for build, data in ((vit, pictures()), (bert, sentences())):
        model, bare, settings = build(hf), build(hf), {"max_steps": 2, **settings}
        fit(hf, trainer_class, model, data, tmp_path, options={"maxup": worst(Nothing(), m=1)}, **settings)
        fit(hf, hf.Trainer, bare, data, tmp_path, **settings)
        assert_equal(model, bare)


def test_compiled(hf, trainer_class, tmp_path):
    noise = mu.Gaussian(0.3, key="pixel_values")
    compiled, eager = vit(hf), vit(hf)
    fit(hf, trainer_class, compiled, pictures(), tmp_path, options={"maxup": worst(noise)}, torch_compile=True,
        torch_compile_backend="eager")  # fmt: skip
    fit(hf, trainer_class, eager, pictures(), tmp_path, options={"maxup": worst(noise)})
    assert_close(compiled, eager)


@pytest.mark.parametrize("restore_callbacks", [False, True])
def test_resumed_equals_unstopped(hf, trainer_class, tmp_path, restore_callbacks):
    def run(start=None):
        words = text_perturbations()["words"]
        model, objective = words.attach(bert(hf)), mu.MaxUp(words, m=4)  # with dropout
        fit(hf, trainer_class, model, sentences(), tmp_path, options={"maxup": objective}, start=start, max_steps=4,
            save_steps=2, save_strategy="steps", restore_callback_states_from_checkpoint=restore_callbacks)  # fmt: skip
        return model, objective.step

    unstopped, steps = run()
    resumed, again = run(start=str(tmp_path / "checkpoint-2"))
    assert_equal(resumed, unstopped)
    assert again == steps == 4


def test_a_checkpoint_of_the_bare_trainer_is_resumed(hf, trainer_class, tmp_path):
    settings = {"max_steps": 4, "save_steps": 2, "save_strategy": "steps"}
    fit(hf, hf.Trainer, bert(hf), sentences(), tmp_path, **settings)
    objective = worst(text_perturbations()["tokens"])
    model, start = bert(hf), str(tmp_path / "checkpoint-2")
    fit(hf, trainer_class, model, sentences(), tmp_path / "b", options={"maxup": objective}, start=start, **settings)
    assert objective.step == 2
    state = json.loads((tmp_path / "b" / "checkpoint-4" / "trainer_state.json").read_text())
    assert state["stateful_callbacks"]["MaxUpState"]["attributes"]["maxup"]["step"] == 2


def test_mixed_labels_with_a_trainer_before_loss_is_scaled_for_ga(hf, trainer_class, tmp_path, monkeypatch):
    monkeypatch.delattr(hf.Trainer, "loss_is_scaled_for_ga", raising=False)  # new in transformers 5.19
    args = hf.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    trainer = trainer_class(vit(hf), args, maxup=worst(mu.CutMix(4, key="pixel_values")))
    batch = COLLATE(pictures()[:4])
    loss = trainer.compute_loss(trainer.model.train(), batch, num_items_in_batch=8)
    x, y = worst(mu.CutMix(4), forward=lambda model, x: model(x).logits).select(
        trainer.model, batch["pixel_values"], batch["labels"]
    )
    torch.testing.assert_close(loss, F.cross_entropy(trainer.model(x).logits, y) / 2)


@pytest.mark.parametrize(("level", "shown"), [("info", True), ("passive", False)])
def test_the_objective_is_logged_once_at_level_info(hf, trainer_class, tmp_path, capsys, monkeypatch, level, shown):
    logger = logging.getLogger("transformers")
    monkeypatch.setattr(logger, "level", logging.WARNING)
    monkeypatch.setattr(logger, "handlers", [logging.StreamHandler(sys.stdout)])
    objective = worst(mu.Gaussian(0.3, key="pixel_values"))
    fit(hf, trainer_class, vit(hf), pictures(), tmp_path, options={"maxup": objective}, max_steps=1, log_level=level)
    assert capsys.readouterr().out.count(f"MaxUpTrainer: training with {objective}\n") == shown


def test_evaluation_is_unchanged(hf, trainer_class, tmp_path):
    objective = worst(mu.Gaussian(0.3, key="pixel_values"))
    trainer = fit(hf, trainer_class, vit(hf), pictures(), tmp_path, options={"maxup": objective}, max_steps=1)
    trainer.eval_dataset = pictures()
    logits = trainer.predict(pictures()).predictions
    loss = F.cross_entropy(torch.tensor(logits), torch.tensor([row["labels"] for row in pictures()]))
    assert trainer.evaluate()["eval_loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert objective.step == 1


def test_an_unknown_loss_is_given_with_the_objective(hf, trainer_class, tmp_path):
    """As the message says: semantic segmentation, whose loss per example is not known."""
    config = {"hidden_sizes": [4, 4, 4, 4], "depths": [1] * 4, "num_attention_heads": [1] * 4, "num_labels": 3}
    model = hf.SegformerForSemanticSegmentation(hf.SegformerConfig(**config, decoder_hidden_size=4))
    data = [{"pixel_values": torch.rand(3, 32, 32), "labels": torch.randint(3, (32, 32))} for _ in range(4)]

    def loss_fn(logits, labels):
        logits = F.interpolate(logits, labels.shape[1:], mode="bilinear")
        return F.cross_entropy(logits, labels, reduction="none").mean((1, 2))

    noise = mu.Gaussian(0.3, key="pixel_values")
    with pytest.raises(ValueError, match=r"not known per example; pass a per-example loss, MaxUp\(..., loss_fn=\)"):
        fit(hf, trainer_class, model, data, tmp_path, options={"maxup": worst(noise)}, max_steps=1)
    fit(hf, trainer_class, model, data, tmp_path, options={"maxup": worst(noise, loss_fn=loss_fn)}, max_steps=1)


def test_messages(hf, trainer_class, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a Trainer without arguments writes to the current folder
    objective = worst(mu.Gaussian(0.3, key="pixel_values"))
    with pytest.raises(TypeError, match="MaxUpTrainer expects a MaxUp objective"):
        trainer_class(vit(hf), maxup=mu.Gaussian(0.3))
    with pytest.raises(ValueError, match="compute_loss_func gives one loss per batch"):
        fit(hf, trainer_class, vit(hf), pictures(), tmp_path,
            options={"maxup": objective, "compute_loss_func": F.cross_entropy})  # fmt: skip
    unlabeled = [{"pixel_values": row["pixel_values"]} for row in pictures()]
    with pytest.raises(ValueError, match=r"needs a tensor of labels, but the batch has the keys \['pixel_values'\]"):
        fit(hf, trainer_class, vit(hf), unlabeled, tmp_path, options={"maxup": objective})
    columns = [{**row, "labels": [row["labels"]]} for row in sentences()]
    with pytest.raises(ValueError, match=r"targets have shape \(4, 1\), .*; pass class ids \(4,\)"):
        fit(hf, trainer_class, bert(hf), columns, tmp_path, options={"maxup": worst(text_perturbations()["tokens"])})
    with pytest.raises(ValueError, match="score='kl' needs the cross-entropy"):
        fit(hf, trainer_class, vit(hf), pictures(), tmp_path, label_smoothing_factor=0.1,
            options={"maxup": worst(mu.CutMix(4, key="pixel_values"), score="kl")})  # fmt: skip


@pytest.mark.parametrize("flag", ["is_deepspeed_enabled", "is_fsdp_enabled"])
def test_split_weights_are_refused(hf, trainer_class, tmp_path, monkeypatch, flag):
    init = hf.Trainer.__init__

    def split(self, *args, **kwargs):
        init(self, *args, **kwargs)
        setattr(self, flag, True)

    monkeypatch.setattr(hf.Trainer, "__init__", split)
    args = hf.TrainingArguments(output_dir=str(tmp_path), use_cpu=True, report_to=[])
    with pytest.raises(ValueError, match="does not support DeepSpeed and FSDP1; use DDP or FSDP2"):
        trainer_class(vit(hf), args, maxup=worst(mu.Gaussian(0.3, key="pixel_values")))


def test_unsupported(hf, trainer_class, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a Trainer without arguments writes to the current folder
    objective = worst(mu.Gaussian(0.3, key="pixel_values"))
    monkeypatch.setattr(hf.TrainingArguments, "n_gpu", 2)
    with pytest.raises(ValueError, match=r"does not support nn.DataParallel; launch one process per GPU with torchrun"):
        trainer_class(vit(hf), maxup=objective)


def test_without_transformers(trainer_class, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "maxup.integrations.transformers")
    with pytest.raises(ImportError, match=r"MaxUpTrainer needs transformers, .*: pip install 'maxup\[transformers\]'"):
        import_module("maxup.integrations.transformers")
