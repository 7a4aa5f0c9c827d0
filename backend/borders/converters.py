"""URL converters of pages: `<id:job_id>`, `<token:token>`.

Invariant: a value that is not a well-formed id reaches no view; its URL is a 404.
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
    """For a link that is a credential: signed or random, in URL-safe characters."""

    regex = r"[A-Za-z0-9_.:=-]{1,500}"


CONVERTERS: Final = {"id": IdConverter, "token": TokenConverter}


def register() -> None:
    """Call it once, before the first URL that uses a converter is loaded."""
    for name, converter in CONVERTERS.items():
        register_converter(converter, name)
