"""The main.py of a text process: serves a model's chat template and tokenizer from files in its folder. The
engine does not import it; `text_process.py` sends it into the sandbox with chat.py and tokenizer.py.

Invariants:
- every function returns {"value": …}, or {"refused": why} for any error or panic of template or tokenizer: the process
  stays warm;
- a list of a vocabulary is returned in slices, which fit a message.
"""

import json
import os
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import Any, NamedTuple

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the sandbox bounds the number of threads

from chat import ChatTemplate  # type: ignore[import-not-found]
from tokenizer import Tokenizer  # type: ignore[import-not-found]

FOLDER = Path(__file__).parent
LONGEST_REASON = 2_000


class Loaded(NamedTuple):
    tokenizer: Any
    words: list[tuple[str, int]]


@cache
def load() -> Loaded:
    tokenizer = Tokenizer.from_folder(FOLDER)
    return Loaded(tokenizer, sorted(tokenizer.words().items(), key=lambda word: (word[1], word[0])))


@cache
def load_template() -> Any:
    return ChatTemplate.of_folder(FOLDER, json.loads((FOLDER / "options.json").read_text()))


def refusing(function: Callable[..., object]) -> Callable[..., dict[str, object]]:
    @wraps(function)
    def call(*arguments: object) -> dict[str, object]:
        try:
            return {"value": function(*arguments)}
        except MemoryError:
            raise
        except ValueError as error:
            return {"refused": str(error)[:LONGEST_REASON]}
        except BaseException as error:  # noqa: BLE001 - a panic of the Rust library is no `Exception`
            return {"refused": f"{type(error).__name__}: {error}"[:LONGEST_REASON]}

    return call


@refusing
def describe() -> dict[str, object]:
    tokenizer, words = load()
    ends = [[token, tokenizer.end_of([token])] for token in tokenizer.eos_ids]
    return {"ends": ends, "num_words": len(words)}


@refusing
def has_template() -> bool:
    return load_template() is not None


@refusing
def rendered(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
    text: str = load_template().rendered(messages, tools)
    return text


@refusing
def encode(text: str, goes_on: bool) -> list[int]:
    ids: list[int] = load().tokenizer.encode(text, goes_on=goes_on)
    return ids


@refusing
def decode(ids: list[int]) -> str:
    text: str = load().tokenizer.decode(ids)
    return text


@refusing
def pieces(ids: list[int]) -> list[str]:
    texts: list[str] = load().tokenizer.pieces(ids)
    return texts


@refusing
def words(first: int, num: int) -> list[tuple[str, int]]:
    return load().words[first : first + num]
