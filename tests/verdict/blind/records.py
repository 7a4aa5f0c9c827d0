"""Keys and answers of a try.

A key is kept in base64, so that a look at the folder does not reveal it, and by its digest in the answers, which were
written first.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from tests.verdict.blind.choosing import Shown

RECORDS: Final = Path(__file__).parent / "records"
KEY: Final = "key.sealed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    number: str
    answer: str
    kind: str
    run: str

    @property
    def is_right(self) -> bool:
        return self.answer == self.kind


def sealed(seed: str, shown: Sequence[Shown]) -> str:
    told = {"seed": seed, "shown": [asdict(each) for each in shown]}
    return base64.b64encode(json.dumps(told).encode()).decode() + "\n"


def opened(key: str) -> list[Shown]:
    return [Shown(**each) for each in json.loads(base64.b64decode(key))["shown"]]


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def judged(answers: Mapping[str, str], shown: Sequence[Shown]) -> list[Answered]:
    return [
        Answered(number=number, answer=answers.get(number, ""), kind=each.kind, run=each.name)
        for number, each in ((str(place), each) for place, each in enumerate(shown, start=1))
    ]
