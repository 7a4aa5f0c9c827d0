"""The search tool: BM25 in plain Python over the documents of a JSONL file.

    {"title": "Paris", "text": "Paris is the capital of France."}

Invariants:
- the same corpus and the same query return the same documents in the same order, in every process;
- a file with a bad line is refused before the job begins; the error names file and line.
"""

import heapq
import json
import math
import re
from array import array
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple

MAX_BYTES: Final = 256 << 20  # the index is in memory and takes about three times the text
_K1, _B = 1.5, 0.75  # the values of most implementations, from Robertson's experiments
_WORD: Final = re.compile(r"\w+")


class Document(NamedTuple):
    title: str
    text: str


class Corpus:
    def __init__(self, path: Path) -> None:
        self._documents = _read_documents(path)
        self._lengths: list[int] = []
        # word -> flat pairs: a document's index, the word's count in it
        self._postings: dict[str, array[int]] = {}
        for at, document in enumerate(self._documents):
            words = _split_words(f"{document.title} {document.text}")
            self._lengths.append(len(words))
            for word, count in Counter(words).items():
                self._postings.setdefault(word, array("L")).extend((at, count))
        self._mean_length = sum(self._lengths) / len(self._lengths) or 1.0

    def search(self, query: str, *, num: int) -> list[Document]:
        scores: dict[int, float] = {}
        for word in sorted(set(_split_words(query))):
            postings = self._postings.get(word, array("L"))
            num_with = len(postings) // 2
            rarity = math.log(1 + (len(self._documents) - num_with + 0.5) / (num_with + 0.5))
            for at, count in zip(postings[::2], postings[1::2], strict=True):
                room = _K1 * (1 - _B + _B * self._lengths[at] / self._mean_length)
                scores[at] = scores.get(at, 0.0) + rarity * count * (_K1 + 1) / (count + room)
        best = heapq.nsmallest(num, scores, key=lambda at: (-scores[at], at))
        return [self._documents[at] for at in best]


def _split_words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _read_documents(path: Path) -> list[Document]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"corpus: {path.name} is larger than {MAX_BYTES >> 20} MiB; use a smaller one")
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ValueError(f"corpus: {path.name} cannot be read: {error.strerror}") from error
    documents = [_parse(line, f"{path.name}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not documents:
        raise ValueError(f"corpus: {path.name} has no documents")
    return documents


def _parse(line: bytes, where: str) -> Document:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not a line of JSON: {error}") from error
    match fields:
        case {"text": str(text)} if isinstance(fields.get("title", ""), str):
            return Document(title=fields.get("title", ""), text=text)
    raise ValueError(f'{where}: expected an object with "text" and optionally "title", both texts')
