"""The API call behind a page, to paste into a terminal.

Invariant: user input cannot break out of its quotes; the key is the reader's environment variable, never a real key.
"""

import json
import shlex
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings

_KEY = '"Authorization: Bearer $LAMINAR_API_KEY"'


def api_url(path: str, **query: str | Sequence[str]) -> str:
    address = f"{settings.ENVIRONMENT.public_url}/api/v1{quote(path)}"
    return f"{address}?{urlencode(query, doseq=True, safe='/')}" if query else address


def get(path: str, **query: str | Sequence[str]) -> str:
    return f"curl -s {shlex.quote(api_url(path, **query))} \\\n  -H {_KEY}"


def call(method: str, path: str) -> str:
    """For a route as documented, with its placeholders: `path` starts at the site's root."""
    option = "" if method == "GET" else f"-X {method} "
    return f"curl -s {option}{shlex.quote(settings.ENVIRONMENT.public_url + path)} \\\n  -H {_KEY}"


def post(path: str, body: dict[str, Any] | None = None, *, idempotent: bool = False) -> str:
    lines = [f"curl -s -X POST {shlex.quote(api_url(path))}", f"-H {_KEY}"]
    if idempotent:
        lines.append('-H "Idempotency-Key: $(uuidgen)"')
    if body is not None:
        lines.append("-H 'Content-Type: application/json'")
        lines.append(f"-d {shlex.quote(json.dumps(body, ensure_ascii=False, indent=2))}")
    return " \\\n  ".join(lines)
