"""Checks that a model can be trained on a batch: it knows the tokens, and has positions for the sequences.

Invariant: every rank comes to the same result, and reads token arrays only if the batch is refused.
"""

import numpy as np

from engine.training.batch import TrainingBatch
from engine.training.sequences import Sequences


def check_batch(batch: TrainingBatch, *, vocab_size: int, max_positions: int) -> None:
    """Raises `ValueError`. Uses the token ids' bounds that the batch recorded, so that no rank reads all tokens."""
    if not len(batch):
        raise ValueError("a step needs at least one trajectory")
    unknown = np.flatnonzero(~np.isfinite(batch.rewards_N))
    if len(unknown):
        raise ValueError(f"trajectory {unknown[0]}: reward must be finite, got {batch.rewards_N[unknown[0]]}")
    _check_lengths(batch, max_positions)
    if batch.lowest_id < 0 or batch.highest_id >= vocab_size:
        raise ValueError(
            f"trajectory {_find_unknown_ids(batch, vocab_size)}: token ids must be from 0 to {vocab_size - 1}"
        )
    if not batch.num_written:
        raise ValueError("a step needs at least one token that the model wrote")


def _check_lengths(batch: TrainingBatch, max_positions: int) -> None:
    sequences = Sequences.of(batch)
    too_long = np.flatnonzero(sequences.lengths_Q - 1 > max_positions)
    if len(too_long):
        owner, length = sequences.owners_Q[too_long[0]], sequences.lengths_Q[too_long[0]]
        raise ValueError(f"trajectory {owner}: at most {max_positions} tokens fit this model, got {length}")


def _find_unknown_ids(batch: TrainingBatch, vocab_size: int) -> int:
    """The first trajectory with an unknown token id. Reads the whole batch."""
    ids_A = batch.tokens.ids_A
    unknown_A = (ids_A < 0) | (ids_A >= vocab_size)
    parts = (
        (batch.prompt_starts_N, batch.prompt_lengths_N),
        (batch.first_responses_A + batch.response_starts_N, batch.response_lengths_N),
    )
    return next(
        index
        for index in range(len(batch))
        if any(unknown_A[starts[index] : starts[index] + lengths[index]].any() for starts, lengths in parts)
    )
