"""The texts of tokens for people, by the job's own tokenizer. Made in the driver: rollouts would decode millions of
tokens, of which a few thousand are reported.

Invariant: without a readable tokenizer there are no texts, and the run continues. A tokenizer that fails once is not
used again: each failure may take as long as a text may.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.live.texts.model_texts import open_texts

Spell = Callable[[Sequence[int]], list[str]]
"""Returns a text for each token, or an empty list."""

log = logging.getLogger(__name__)


def no_texts(ids: Sequence[int]) -> list[str]:
    return []


def texts_of_tokens(folder: Path) -> Spell:
    """`folder`: the model's."""
    try:
        tokenizer = open_texts(folder).tokenizer
    except Exception as error:  # noqa: BLE001 - texts are for display only
        log.warning("tokens are reported without texts, cannot read the tokenizer: %s", error)
        return no_texts
    known: dict[int, str] = {}
    has_failed = False

    def spell(ids: Sequence[int]) -> list[str]:
        nonlocal has_failed
        unknown = list(dict.fromkeys(token for token in ids if token not in known))
        if unknown and not has_failed:
            try:
                known.update(zip(unknown, tokenizer.pieces(unknown), strict=True))
            except Exception as error:  # noqa: BLE001 - as above
                has_failed = True
                log.warning("tokens are reported without texts from now on: %s", error)
        return [] if has_failed else [known[token] for token in ids]

    return spell
