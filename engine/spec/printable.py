"""Text that a person can trust to be what it looks like: in a log, in a terminal, as a name in a list.

Invariants:
- what `escaped` gives is one line of visible characters, whatever went in: nothing in it ends the line, moves a
  terminal's cursor, turns the writing direction or cannot be seen;
- text without such characters is given back as it is.
"""

import re
import unicodedata
from typing import Final

# Letters and marks by category, so Python calls them printable, and yet nothing is seen: fillers, an empty braille
# cell, the joiner of graphemes, selectors of variants.
_UNSEEN: Final = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef"
_UNSEEN_LETTER: Final = re.compile(f"[{_UNSEEN}]")
# Part of how words are written (Persian, Hindi) and of emoji; they turn nothing around.
_JOINERS: Final = frozenset("\u200c\u200d\ufe0e\ufe0f")


def escaped(text: str) -> str:
    """Each unprintable or invisible character as Python writes it: `\\n`, `\\x1b`, `\\u202e`, `\\ud800`."""
    if text.isprintable() and not _UNSEEN_LETTER.search(text):
        return text
    return "".join(each if _is_seen(each) else _written(each) for each in text)


def refuse_unreadable(name: str) -> str:
    """For a name that people compare and click. Raises `ValueError`."""
    unreadable = [each for each in name if not _is_seen(each) and each not in _JOINERS]
    if unreadable:
        raise ValueError(
            f"must be one line of visible characters: {_written(unreadable[0])} "
            f"({unicodedata.name(unreadable[0], 'a control character')}) is none"
        )
    if name and not any(_is_seen(each) and not each.isspace() for each in name):
        raise ValueError("must show something: it is all spaces or invisible characters")
    return name


def _is_seen(character: str) -> bool:
    return character.isprintable() and not _UNSEEN_LETTER.match(character)


def _written(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
