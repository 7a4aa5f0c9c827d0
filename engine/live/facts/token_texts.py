"""The texts of tokens that a person reads, by the job's own tokenizer, in the driver: rollouts would spell out millions
of tokens of which a few thousand are told.

Invariant: without a tokenizer that can be read nothing is told, and the run goes on.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.models.tokenizer import Tokenizer

Spell = Callable[[Sequence[int]], list[str]]
"""A text for each token, or nothing at all."""

log = logging.getLogger(__name__)


def no_texts(ids: Sequence[int]) -> list[str]:
    return []


def texts_of_tokens(folder: Path) -> Spell:
    """`folder`: of the model."""
    try:
        tokenizer = Tokenizer.from_folder(folder)
    except Exception as error:  # noqa: BLE001 - whatever the library raises of a file that it cannot read
        log.warning("tokens are told without their texts: %s", error)
        return no_texts
    known: dict[int, str] = {}

    def spell(ids: Sequence[int]) -> list[str]:
        for token in ids:
            if token not in known:
                known[token] = tokenizer.piece(token)
        return [known[token] for token in ids]

    return spell
