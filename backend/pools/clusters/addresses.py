"""The Ray of a pool: the address of its Jobs API, and the token that it asks for.

Invariants:
- a token lies in a file, is read when it is needed and stored nowhere else; a pool holds its name. The name leads into
  LAMINAR_RAY_TOKENS_DIR, which holds nothing but such tokens, and never out of it;
- the site's token goes to the site's address and to no other; a pool with an address of its own and no token sends
  none.
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
    """The file with a Ray's token cannot be read, or is empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayAddress:
    """Pools whose address is equal are on the same Ray."""

    url: str = ""
    """Empty: the site's own."""
    token: str = ""
    """The name of its file."""

    def __str__(self) -> str:
        return self.url or "the site's own Ray"


def address_of(pool: ResourcePool) -> RayAddress:
    return RayAddress(url=pool.ray_url, token=pool.ray_token)


def terms_of(pool: ResourcePool, *, avoiding: Sequence[str] = ()) -> PoolTerms:
    """`avoiding`: ids of hosts that nothing new is placed on."""
    without = {"ray.io/node-id": f"!in({','.join(avoiding)})"} if avoiding else {}
    return PoolTerms(labels={**pool.labels, **without}, device=pool.device or None, autoscales=pool.autoscales)


def url_of(address: RayAddress, environment: Environment | None = None) -> str:
    """`environment`: another than this process has, for who examines one."""
    return address.url or (environment or own_environment()).ray_url


def token_of(address: RayAddress, environment: Environment | None = None) -> str:
    """Empty: it asks for none. Raises `TokenMissing`."""
    known = environment or own_environment()
    if not address.url:
        return token_in(known.ray_token_file, "LAMINAR_RAY_TOKEN_FILE")
    if not address.token:
        return ""
    folder = known.ray_tokens_dir
    if not folder:
        raise TokenMissing(f"the token {address.token!r} of a pool lies in LAMINAR_RAY_TOKENS_DIR, which is not set")
    if not is_name(address.token):
        raise TokenMissing("the name of a pool's token is not one of a file")
    return token_in(Path(folder) / address.token, f"{address.token!r} in LAMINAR_RAY_TOKENS_DIR")


def own_environment() -> Environment:
    here: Environment = settings.ENVIRONMENT
    return here


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def refuse_address(url: str) -> str:
    """As it is stored. Raises `ValueError`. What stands in it is shown to operators: a password does not."""
    try:
        parts = urlsplit(url)
        well_formed = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        well_formed = False
    if not well_formed or len(url) > LONGEST_URL or "@" in parts.netloc or re.search(r"[\s?#\\]", url):
        got = "one with an @, which is not repeated here" if "@" in url else repr(url[:LONGEST_URL])
        raise ValueError(
            "the address of a Ray's Jobs API, without a name or password in it, such as http://ray-head:8265; "
            f"got {got}"
        )
    return url.rstrip("/")


def token_in(path: Path, called: str) -> str:
    """`called`: to whoever reads that it is missing. A file written by hand ends with a newline, which no header holds.
    Raises `TokenMissing`."""
    try:
        token = path.read_text().strip()
    except (OSError, ValueError) as error:
        raise TokenMissing(f"{called} cannot be read: {type(error).__name__}") from error
    if not token or not token.isascii() or not token.isprintable():
        raise TokenMissing(f"{called} is empty, or holds what is no token")
    return token
