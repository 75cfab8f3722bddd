"""MaxUp in the Hugging Face Trainer, on images: one argument.

python examples/hf_image.py            # m = 4 copies
python examples/hf_image.py --m 1      # standard augmentation
"""

import argparse
import tempfile

import torch
from maxup import CutMix, MaxUp
from maxup.integrations import MaxUpTrainer
from sklearn.datasets import load_digits
from transformers import ResNetConfig, ResNetForImageClassification, TrainingArguments


def main() -> None:
    """Train, and print the test accuracy."""
    parser = argparse.ArgumentParser(description="Train a small ResNet on scikit-learn's digits with MaxUp.")
    parser.add_argument("--m", type=int, default=4, help="copies per example (default: 4)")
    parser.add_argument("--epochs", type=int, default=20, help="epochs to train (default: 20)")
    args = parser.parse_args()

    torch.manual_seed(0)
    digits = load_digits()
    x = torch.tensor(digits.images / 16, dtype=torch.float32)[:, None]  # (1797, 1, 8, 8)
    rows = [{"pixel_values": image, "labels": int(y)} for image, y in zip(x, digits.target, strict=True)]
    config = ResNetConfig(num_channels=1, num_labels=10, embedding_size=32, hidden_sizes=[64], depths=[2])
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder, num_train_epochs=args.epochs, per_device_train_batch_size=50, learning_rate=2e-3,
            save_strategy="no", report_to=[],
        )  # fmt: skip
        trainer = MaxUpTrainer(
            ResNetForImageClassification(config),
            settings,
            train_dataset=rows[:1000],
            eval_dataset=rows[1000:],
            compute_metrics=lambda result: {"accuracy": (result.predictions.argmax(1) == result.label_ids).mean()},
            maxup=MaxUp(CutMix(num_classes=10, key="pixel_values"), m=args.m),
        )
        trainer.train()
        print(f"test accuracy {100 * trainer.evaluate()['eval_accuracy']:.2f} %")


if __name__ == "__main__":
    main()
