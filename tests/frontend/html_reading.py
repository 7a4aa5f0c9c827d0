"""Extracts the visible text of an HTML response."""

from html import unescape
from typing import Any

Answer = Any  # the test client's own response type has no public name


def text_of(response: Answer) -> str:
    return str(response.content, "utf-8")


def words_of(response: Answer) -> str:
    """The HTML with entities unescaped and without line breaks."""
    return " ".join(unescape(text_of(response)).split())
