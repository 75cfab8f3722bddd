"""Text that a language model writes."""

from typing import Any

import torch
from torch import Generator

from maxup.lab.data.text import END, UNKNOWN, Text


@torch.no_grad()
def sample(model: Any, text: Text, *, words: int, temperature: float, prompt: str, generator: Generator) -> str:
    """Draw words one by one, each from the model's distribution given all before it.

    Args:
        model: In evaluation mode.
        text: Whose vocabulary it has.
        words: How many to draw.
        temperature: Below 1 prefers probable words; 0 takes the most probable one.
        prompt: Words to begin with, in the vocabulary's spelling; the text starts with a new sentence, and a
            line break ends one.
        generator: Where randomness comes from, on the model's device.

    Example:
        >>> from maxup.lab.data.text import from_lines
        >>> from maxup.lab.models.awd_lstm import AWDLSTM
        >>> text = from_lines(["a b c"], ["a"], ["b"])
        >>> model = AWDLSTM(4, embedding=2, hidden=3, layers=1).eval()
        >>> len(sample(model, text, words=5, temperature=1, prompt="a b", generator=Generator()).split()) <= 7
        True
    """
    places = {word: place for place, word in enumerate(text.words)}
    begun = prompt.replace("\n", f" {END} ").split()
    given = [places.get(word, places.get(UNKNOWN)) for word in begun]
    if None in given:
        raise ValueError(f"the prompt's {begun[given.index(None)]!r} is not in the vocabulary; choose another")
    device = model.bias.device
    tokens: list[int] = [places[END], *given]  # type: ignore[list-item]
    read = model(torch.tensor([tokens], device=device), model.start(1))
    for _ in range(words):
        scores = model.decode(read.output[0, -1]).float()  # (V,)
        if UNKNOWN in places:
            scores[places[UNKNOWN]] = -torch.inf  # which says nothing
        if temperature == 0:
            token = int(scores.argmax())
        else:
            scores = (scores - scores.max()) / max(temperature, 1e-30)  # at most 0; a float32 has no far smaller ones
            token = int(torch.multinomial(scores.softmax(0), 1, generator=generator))
        tokens.append(token)
        read = model(torch.tensor([[token]], device=device), read.hidden)
    return text.read(tokens[1:]).strip()
