"""A pool's Ray: the address of its Jobs API, and its token.

Invariants:
- a token is kept in a file, read when needed and stored nowhere else; a pool stores the file's name, which resolves
  inside LAMINAR_RAY_TOKENS_DIR and never outside it. That folder holds nothing but tokens;
- the site's token is sent to the site's address only; a pool with its own address and no token sends none.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from django.conf import settings

from backend.environment import Environment
from backend.pools.models import ResourcePool
from engine.spec.control import PoolTerms

LONGEST_URL: Final = 300
LONGEST_NAME: Final = 64
_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{LONGEST_NAME - 1}}}")


class TokenMissing(RuntimeError):
    """The file with a Ray's token is missing or empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayAddress:
    """Pools with equal addresses are on the same Ray."""

    url: str = ""
    """Empty: the site's Ray."""
    token: str = ""
    """The token file's name."""

    def __str__(self) -> str:
        return self.url or "the site's own Ray"


def address_of(pool: ResourcePool) -> RayAddress:
    return RayAddress(url=pool.ray_url, token=pool.ray_token)


def terms_of(pool: ResourcePool, *, avoiding: Sequence[str] = ()) -> PoolTerms:
    """`avoiding`: ids of hosts on which nothing new is placed."""
    without = {"ray.io/node-id": f"!in({','.join(avoiding)})"} if avoiding else {}
    return PoolTerms(labels={**pool.labels, **without}, device=pool.device or None, autoscales=pool.autoscales)


def url_of(address: RayAddress, environment: Environment | None = None) -> str:
    """`environment`: defaults to this process' own."""
    return address.url or (environment or own_environment()).ray_url


def token_of(address: RayAddress, environment: Environment | None = None) -> str:
    """Empty: that Ray needs none. Raises `TokenMissing`."""
    known = environment or own_environment()
    if not address.url:
        return token_in(known.ray_token_file, "LAMINAR_RAY_TOKEN_FILE")
    if not address.token:
        return ""
    folder = known.ray_tokens_dir
    if not folder:
        raise TokenMissing(f"the token {address.token!r} of a pool needs LAMINAR_RAY_TOKENS_DIR, which is not set")
    if not is_name(address.token):
        raise TokenMissing("the name of a pool's token is not a file name")
    return token_in(Path(folder) / address.token, f"{address.token!r} in LAMINAR_RAY_TOKENS_DIR")


def own_environment() -> Environment:
    here: Environment = settings.ENVIRONMENT
    return here


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def refuse_address(url: str) -> str:
    """The normalized address. Raises `ValueError`. Operators see it, so it must not hold a password."""
    try:
        parts = urlsplit(url)
        well_formed = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        well_formed = False
    if not well_formed or len(url) > LONGEST_URL or "@" in parts.netloc or re.search(r"[\s?#\\]", url):
        got = "an address with an @, which is not shown" if "@" in url else repr(url[:LONGEST_URL])
        raise ValueError(
            "must be the address of a Ray's Jobs API, without user and password, such as http://ray-head:8265; "
            f"got {got}"
        )
    return url.rstrip("/")


def token_in(path: Path, called: str) -> str:
    """`called`: the token's description in errors. Strips the newline of a file written by hand, which no header may
    hold. Raises `TokenMissing`."""
    try:
        token = path.read_text().strip()
    except (OSError, ValueError) as error:
        raise TokenMissing(f"{called} cannot be read: {type(error).__name__}") from error
    if not token or not token.isascii() or not token.isprintable():
        raise TokenMissing(f"{called} is empty or not a token")
    return token
