"""Words that an attacker who knows the user and the site tries first: they do not count towards a password's length.

Invariant: what is left of a password without these words must be long enough by itself. A password that also contains a
name is thus as good as it would be without it.
"""

import re
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db.models import Q

from backend.accounts.models import Team, User

_PRODUCT: Final = "laminar"
_SHORTEST_WORD: Final = 4  # shorter ones occur by chance
_BETWEEN_WORDS: Final = re.compile(r"[^\w]+|_")


class ContextWordsValidator:
    def __init__(self, min_length: int) -> None:
        self.min_length = min_length

    def validate(self, password: str, user: Any = None) -> None:
        rest = password.casefold()
        for word in sorted(context_words_of(user if isinstance(user, User) else None), key=len, reverse=True):
            rest = rest.replace(word, "")
        if len(rest) < min(self.min_length, len(password)):
            raise ValidationError(
                "Without your name, your address, and the names of your team and of this site, "
                f"this password is shorter than {self.min_length} characters.",
                code="password_of_context",
            )

    def get_help_text(self) -> str:
        return "Your name, your address, and the names of your team and of this site do not count towards its length."


def context_words_of(user: User | None) -> set[str]:
    texts = [_PRODUCT, urlsplit(settings.ENVIRONMENT.public_url).hostname or ""]
    if user is not None:
        texts += [user.email, user.first_name, user.last_name, *_team_names_of(user)]
    return set(_split_words(texts))


def _team_names_of(user: User) -> Iterable[str]:
    """Names of the user's teams, and of those that have invited them."""
    theirs = Q(invitations__email=user.email.lower())
    if user.pk is not None:
        theirs |= Q(memberships__user_id=user.pk)
    return Team.objects.filter(theirs).values_list("name", flat=True).distinct()


def _split_words(texts: Iterable[str]) -> Iterable[str]:
    for text in texts:
        words = [word for word in _BETWEEN_WORDS.split(text.casefold()) if word]
        yield from (word for word in (*words, "".join(words)) if len(word) >= _SHORTEST_WORD)
