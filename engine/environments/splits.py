"""Splits: which prompts are held out, and the order in which prompts are drawn.

Invariants:
- a prompt's split follows from its text alone, so no seed and no order of lines can put it into both;
- every lap draws each prompt exactly once, in an order that depends on the seed and the lap; the order is computed,
  not stored, so a hundred million prompts cost no more than ten.
"""

import hashlib
from typing import Final

from engine.environments.port import Split

_FEISTEL_ROUNDS: Final = 4  # fewer leave visible stripes; this is an order, not a secret


def split_of_text(text: str, held_out_share: float) -> Split:
    drawn = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
    return "held_out" if drawn < held_out_share * 2**64 else "train"


def place_in_order(ordinal: int, num: int, seed: str) -> int:
    """The index, among `num` prompts, of the prompt that is drawn at this ordinal."""
    lap, at = divmod(ordinal, num)
    half_bits = max((num - 1).bit_length() + 1, 2) // 2
    while True:  # the permutation is of the next power of four; apply it until the index is below num
        at = _permuted(at, half_bits, f"{seed}/{lap}")
        if at < num:
            return at


def _permuted(value: int, half_bits: int, key: str) -> int:
    mask = (1 << half_bits) - 1
    left, right = value >> half_bits, value & mask
    for step in range(_FEISTEL_ROUNDS):
        mixed = hashlib.blake2b(f"{key}/{step}/{right}".encode(), digest_size=8).digest()
        left, right = right, left ^ (int.from_bytes(mixed) & mask)
    return left << half_bits | right


def check_place(split: Split, ordinal: int) -> None:
    if split not in ("train", "held_out"):
        raise ValueError(f"split: train or held_out, got {split!r}")
    if ordinal < 0:
        raise ValueError(f"ordinal: 0 or more, got {ordinal}")
