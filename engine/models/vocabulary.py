"""The words of two models, compared: what one has written, the other can be asked about only if it knows it.

Token ids are all that a teacher is given. Its tokenizer must give every id the policy's meaning; how it would have cut
a text into tokens does not matter. Tables of embeddings are padded differently by models of one family (Qwen2.5:
151,936 and 152,064), so that the teacher's may be the larger one. Nothing is loaded but these files.
"""

import json
from pathlib import Path
from typing import Any, Final

from engine.models.tokenizer import Tokenizer

FIELD: Final = "algorithm.teacher.source"


def refuse_other_words(folder: Path, teacher: Path) -> None:
    """Raises `ValueError` of a teacher that knows fewer tokens, or shorter texts, than the model in `folder`."""
    mine, its = _config(folder), _config(teacher)
    for field in ("vocab_size", "max_position_embeddings"):
        if its[field] < mine[field]:
            raise ValueError(
                f"{FIELD}: the teacher's {field} must be at least the model's {mine[field]:,}, got {its[field]:,} "
                f"in {teacher.name}"
            )
    words, others = (Tokenizer.from_folder(each).words() for each in (folder, teacher))
    if words != others:
        number = min(number for _, number in words.items() ^ others.items())
        raise ValueError(
            f"{FIELD}: the teacher's tokenizer must be the model's: token {number} is {_spoken(words, number)} to the "
            f"model and {_spoken(others, number)} to {teacher.name}"
        )


def _spoken(words: dict[str, int], number: int) -> str:
    return ", ".join(repr(word) for word, other in words.items() if other == number) or "none"


def _config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if not file.is_file():
        raise ValueError(f"{FIELD}: {folder} must have a config.json")
    # What transformers and engine/models/loading.py take where the file does not say it.
    config: dict[str, Any] = {"vocab_size": 0, "max_position_embeddings": 2048, **json.loads(file.read_text())}
    return config
