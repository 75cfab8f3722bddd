"""Generate text with a language model."""

from typing import Any

import torch
from torch import Generator

from maxup.errors import DataError
from maxup.lab.data.text import END, UNKNOWN, Text


@torch.no_grad()
def sample(model: Any, text: Text, *, words: int, temperature: float, prompt: str, generator: Generator) -> str:
    """Draw words one by one, each given all words before it.

    Args:
        model: A language model in evaluation mode.
        text: The text with its vocabulary.
        words: Number of words to draw.
        temperature: Below 1 prefers probable words. 0 always takes the most probable one.
        prompt: The first words. They start a sentence, and a line break ends one. If the vocabulary has no `<eos>`, it
            must not be empty.
        generator: Source of randomness, on the device of the model.
    """
    ids = {word: i for i, word in enumerate(text.words)}
    first = text.split(prompt)
    given = [ids.get(word, ids.get(UNKNOWN)) for word in first]
    if None in given:
        raise DataError(f"{first[given.index(None)]!r} in the prompt is not in the vocabulary; choose another word")
    device = model.bias.device
    start = [ids[END]] if END in ids else []  # token ids, or one paragraph, may not have it
    tokens: list[int] = [*start, *given]  # type: ignore[list-item]
    if not tokens:
        raise DataError(f"the prompt is empty, but the vocabulary has no {END} to start from; give a prompt")
    read = model(torch.tensor([tokens], device=device), model.start(1))
    for _ in range(words):
        scores = model.decode(read.output[0, -1]).float()  # (V,)
        if UNKNOWN in ids:
            scores[ids[UNKNOWN]] = -torch.inf  # never draw it
        if temperature == 0:
            token = int(scores.argmax())
        else:
            scores = (scores - scores.max()) / max(
                temperature, 1e-30
            )  # at most 0; float32 has no much smaller temperatures
            token = int(torch.multinomial(scores.softmax(0), 1, generator=generator))
        tokens.append(token)
        read = model(torch.tensor([[token]], device=device), read.hidden)
    return text.read(tokens[len(start) :]).strip()
