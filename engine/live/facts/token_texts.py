"""The texts of tokens for people, by the job's own tokenizer. Made in the driver: rollouts would decode millions of
tokens, of which a few thousand are reported.

Invariant: without a readable tokenizer there are no texts, and the run continues.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.models.tokenizer import Tokenizer

Spell = Callable[[Sequence[int]], list[str]]
"""Returns a text for each token, or an empty list."""

log = logging.getLogger(__name__)


def no_texts(ids: Sequence[int]) -> list[str]:
    return []


def texts_of_tokens(folder: Path) -> Spell:
    """`folder`: the model's."""
    try:
        tokenizer = Tokenizer.from_folder(folder)
    except Exception as error:  # noqa: BLE001 - the library raises many types for an unreadable file
        log.warning("tokens are reported without texts, cannot read the tokenizer: %s", error)
        return no_texts
    known: dict[int, str] = {}

    def spell(ids: Sequence[int]) -> list[str]:
        for token in ids:
            if token not in known:
                known[token] = tokenizer.piece(token)
        return [known[token] for token in ids]

    return spell
