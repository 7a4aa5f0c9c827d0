"""Text that is what it looks like: in a log, in a terminal, as a name in a list.

Invariants:
- `escaped` returns one line of visible characters for any input: nothing in it ends the line, moves a terminal's
  cursor, changes the writing direction or is invisible;
- text without such characters is returned unchanged.
"""

import re
import unicodedata
from typing import Final

# Printable for Python, because their category is letter or mark, but invisible: fillers, the empty braille cell, the
# grapheme joiner, variation selectors.
_UNSEEN: Final = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef"
_UNSEEN_LETTER: Final = re.compile(f"[{_UNSEEN}]")
# Used in Persian and Hindi spelling and in emoji; they do not change the writing direction.
_JOINERS: Final = frozenset("\u200c\u200d\ufe0e\ufe0f")


def escaped(text: str) -> str:
    """The text with unprintable and invisible characters as Python escapes: `\\n`, `\\x1b`, `\\u202e`, `\\ud800`."""
    if text.isprintable() and not _UNSEEN_LETTER.search(text):
        return text
    return "".join(each if _is_seen(each) else _escape(each) for each in text)


def refuse_unreadable(name: str) -> str:
    """Validates a name that people compare and click. Raises `ValueError`."""
    unreadable = [each for each in name if not _is_seen(each) and each not in _JOINERS]
    if unreadable:
        raise ValueError(
            f"must be one line of visible characters, got {_escape(unreadable[0])} "
            f"({unicodedata.name(unreadable[0], 'a control character')})"
        )
    if name and not any(_is_seen(each) and not each.isspace() for each in name):
        raise ValueError("must not consist of spaces and invisible characters only")
    return name


def _is_seen(character: str) -> bool:
    return character.isprintable() and not _UNSEEN_LETTER.match(character)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
