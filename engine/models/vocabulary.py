"""Checks that a teacher's vocabulary matches the policy's: a teacher can score only tokens that it knows.

A teacher receives token ids only. Its tokenizer must give every id the policy's meaning; how it would split a text does
not matter. Models of one family pad their embedding tables differently (Qwen2.5: 151,936 and 152,064), so the teacher's
may be larger. Only configuration and tokenizer files are read.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

FIELD: Final = "algorithm.teacher.source"
COMPARED: Final = ("vocab_size", "max_position_embeddings")
WordsOf = Callable[[Path], Mapping[str, int]]
"""The ids of all words of a folder's tokenizer.json, which is a customer's file: its reader is the caller's choice."""


def refuse_vocabulary_mismatch(folder: Path, teacher: Path, *, words_of: WordsOf) -> None:
    """Raises `ValueError` if the teacher has fewer tokens, or a shorter context, than the model in `folder`."""
    config, teacher_config = _read_config(folder), _read_config(teacher)
    for field in COMPARED:
        if teacher_config[field] < config[field]:
            raise ValueError(
                f"{FIELD}: the teacher's {field} must be at least the model's {config[field]:,}, "
                f"got {teacher_config[field]:,} in {teacher.name}"
            )
    words, teacher_words = map(words_of, (folder, teacher))
    if words != teacher_words:
        number = min(number for _, number in words.items() ^ teacher_words.items())
        raise ValueError(
            f"{FIELD}: the teacher's tokenizer must match the model's: token {number} is "
            f"{_quote_words(words, number)} in the model and {_quote_words(teacher_words, number)} in {teacher.name}"
        )


def _quote_words(words: Mapping[str, int], number: int) -> str:
    return ", ".join(repr(word) for word, other in words.items() if other == number) or "none"


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    if not file.is_file():
        raise ValueError(f"{FIELD}: {folder} must have a config.json")
    # The defaults of transformers and engine/models/loading.py.
    try:
        config: dict[str, Any] = {"vocab_size": 0, "max_position_embeddings": 2048, **json.loads(file.read_text())}
    except (ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{FIELD}: {file} must hold one JSON object: {error}") from error
    for field in COMPARED:
        if type(config[field]) is not int:
            raise ValueError(f"{FIELD}: {field} in {file} must be a whole number, got {config[field]!r:.100}")
    return config
