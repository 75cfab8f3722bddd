"""MaxUp in the Hugging Face Trainer, on text: the worst of m word-dropout masks of every sentence.

python examples/hf_text.py            # m = 4 copies
python examples/hf_text.py --m 1      # standard word dropout
"""

import argparse
import tempfile
from pydoc_data.topics import topics  # Python's help: text without a download

import torch
from maxup import EmbeddingDropout, MaxUp
from maxup.integrations import MaxUpTrainer
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

TOPICS, LENGTH = ["specialnames", "compound", "formatstrings", "import"], 16


def main() -> None:
    """Train a small BERT to name the topic of 16 words, and print the test accuracy."""
    parser = argparse.ArgumentParser(description="Train a small BERT on Python's help text with MaxUp.")
    parser.add_argument("--m", type=int, default=4, help="copies per example (default: 4)")
    parser.add_argument("--epochs", type=int, default=10, help="epochs to train (default: 10)")
    args = parser.parse_args()

    torch.manual_seed(0)
    words = [topics[name].lower().split()[:2500] for name in TOPICS]
    ids = {word: number for number, word in enumerate(sorted({word for text in words for word in text}))}
    rows = [
        {"input_ids": torch.tensor([ids[word] for word in text[start : start + LENGTH]]), "labels": label}
        for label, text in enumerate(words)
        for start in range(0, len(text) - LENGTH, LENGTH)
    ]
    config = BertConfig(
        vocab_size=len(ids), num_labels=len(TOPICS), hidden_size=64, num_hidden_layers=1, num_attention_heads=4,
        intermediate_size=128, max_position_embeddings=LENGTH,
    )  # fmt: skip
    dropout = EmbeddingDropout(0.2, layer="bert.embeddings.word_embeddings")
    model = dropout.attach(BertForSequenceClassification(config))
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder, num_train_epochs=args.epochs, per_device_train_batch_size=32, learning_rate=2e-3,
            save_strategy="no", report_to=[],
        )  # fmt: skip
        train, test = [r for i, r in enumerate(rows) if i % 4], rows[::4]
        trainer = MaxUpTrainer(model, settings, train_dataset=train, maxup=MaxUp(dropout, m=args.m))
        trainer.train()
        result = trainer.predict(test)
    print(f"test accuracy {100 * (result.predictions.argmax(1) == result.label_ids).mean():.2f} %")


if __name__ == "__main__":
    main()
