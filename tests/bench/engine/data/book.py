"""A long text as a model might have written it, ids in a natural order and log-probs: it packs as real ones do."""

import re
from typing import Final

import numpy as np

from engine.pipeline.packed import Floats, Ints
from engine.pipeline.records import TrajectoryContent

PROMPT_LENGTH: Final = 512
# A vocabulary of today's size: how well ids can be packed depends on it.
VOCABULARY: Final = 150_000


class Book:
    """Words in a natural order, as long as wanted, with log-probs."""

    def __init__(self) -> None:
        from pydoc_data.topics import topics  # the one long text that comes with every Python

        self.words: list[str] = re.findall(r"\s?\w+|\W", "".join(topics.values()))
        numbers = {word: at for at, word in enumerate(dict.fromkeys(self.words))}
        spread = np.random.default_rng(0).permutation(VOCABULARY)
        self.ids = spread[[numbers[word] for word in self.words]].astype(np.int32)
        draw = np.random.default_rng(1)
        self.logprobs = -draw.exponential(draw.choice([1e-3, 0.5], len(self.ids))).astype(np.float32)
        self.id_list, self.logprob_list = tuple(self.ids.tolist()), tuple(self.logprobs.tolist())

    def content(self, at: int, length: int) -> TrajectoryContent:
        return TrajectoryContent(
            prompt_ids=Ints(self.ids[:PROMPT_LENGTH].tobytes()),
            response_ids=Ints(self.ids[at : at + length].tobytes()),
            logprobs=Floats(self.logprobs[at : at + length].tobytes()),
            prompt_text="".join(self.words[:PROMPT_LENGTH]),
            response_text="".join(self.words[at : at + length]),
            remark="",
        )
