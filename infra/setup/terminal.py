"""Words to a person at the terminal."""

from __future__ import annotations

import sys


class Refusal(Exception):
    """A refusal with the problem and the fix, in one sentence."""


def say(sentence: str) -> None:
    show(f"{sentence}\n")


def show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
