"""The demo model's tokenizer: one token per term, one per step, and readable text.

    "3" " + 8" " + 5" " ="    " 3" " → 11" " → 16" "."

Invariants:
- decode(encode(text)) == text for every prompt and every answer of running_sums, alone or joined;
- the arrow is part of the step's token, so an answer of K steps costs K + 1 tokens;
- the full stop is the end token; running_sums grades an answer alike with and without it, since engines cut it off.
"""

import json
from pathlib import Path
from typing import Final

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from engine.environments.running_sums import ARROW, FULL_STOP, MODULUS

PAD: Final = "<pad>"
UNKNOWN: Final = "<unk>"
_PIECES: Final = rf"{ARROW}[0-9]{{1,2}}| \+ [1-9]| =| [1-9]|[1-9]|\."


def vocabulary() -> dict[str, int]:
    digits = range(1, 10)
    words = [PAD, UNKNOWN, FULL_STOP, " ="]
    words += [str(digit) for digit in digits]  # the prompt's first term
    words += [f" + {digit}" for digit in digits]
    words += [f" {digit}" for digit in digits]  # the answer's first step, which is the first term
    words += [f"{ARROW}{total}" for total in range(MODULUS)]
    return {word: index for index, word in enumerate(words)}


def build_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(vocabulary(), unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(_PIECES), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([PAD, UNKNOWN])
    return tokenizer


def save_tokenizer(folder: Path, *, max_length: int) -> None:
    build_tokenizer().save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "unk_token": UNKNOWN,
        "eos_token": FULL_STOP,
        "padding_side": "left",
        "model_max_length": max_length,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
