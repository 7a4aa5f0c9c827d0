"""Converters for the addresses of pages: `<id:job_id>`, `<token:token>`.

Invariant: what does not look like an id reaches no view; the address is answered as unknown.
"""

from typing import Final

from django.urls import register_converter

from backend.borders.types import ID_PATTERN


class IdConverter:
    regex = ID_PATTERN

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return value


class TokenConverter(IdConverter):
    """Of a link that is a right by itself: signed or random, in letters that need no quoting."""

    regex = r"[A-Za-z0-9_.:=-]{1,500}"


CONVERTERS: Final = {"id": IdConverter, "token": TokenConverter}


def register() -> None:
    """Once, before the first address that uses them is read."""
    for name, converter in CONVERTERS.items():
        register_converter(converter, name)
