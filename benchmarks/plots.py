"""Plot the comparisons of docs/results.md: python -m benchmarks.plots"""

from benchmarks.result_files import RESULTS, result
from maxup.lab.report.comparison import plot

TITLES = {
    "digits": "MLP on digits",
    "digits-cause": "MLP on digits",
    "digits-length/240": "MLP on digits, 240 epochs",
    "digits-certified": "MLP on digits, noise 0.5",
    "cifar10-little/1000": "ResNet-14 on 1,000 images of CIFAR-10, Cutout",
    "cifar10-little/4000": "ResNet-14 on 4,000 images of CIFAR-10, Cutout",
    "cifar16": "ResNet-8 on 500 images of CIFAR-10 at 16 x 16, Cutout",
    "cifar16-certified": "ResNet-8 on CIFAR-10 at 16 x 16, noise 0.25",
    "docstrings-embedding_dropout": "Transformer on docstrings, word dropout",
    "docstrings-token_dropout": "Transformer on docstrings, token dropout",
}


def main() -> None:
    for name, title in TITLES.items():
        plot(result(name), RESULTS / f"{name}.png", title)


if __name__ == "__main__":
    main()
