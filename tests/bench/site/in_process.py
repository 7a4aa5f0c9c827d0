"""Requests that need no server: a transport of `requests` that hands them to Django in this process.

Invariant: each request is rolled back once it is answered, so that one team lasts for as many as one likes.
"""

from io import BytesIO
from typing import Any, Final
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3 import HTTPResponse

INSIDE: Final = "http://testserver"
"""The base address of what is answered here: the host that Django's tests allow."""


class DjangoAdapter(HTTPAdapter):
    def __init__(self) -> None:
        from django.test import Client

        super().__init__()
        self._client = Client(raise_request_exception=False)

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        from django.db import connection, transaction

        parts = urlsplit(request.url or "")
        given = {name: str(value) for name, value in request.headers.items()}
        headers = {name: value for name, value in given.items() if name.lower() != "content-type"}
        body = request.body.encode() if isinstance(request.body, str) else request.body or b""
        with transaction.atomic():
            told: Any = self._client.generic(
                request.method or "GET",
                f"{parts.path}?{parts.query}" if parts.query else parts.path,
                body,
                content_type=given.get("Content-Type", ""),
                headers=headers,
            )
            content = b"" if told.streaming else told.content
            if told.streaming:
                told.close()
            if not connection.needs_rollback:
                transaction.set_rollback(True)
        raw = HTTPResponse(
            BytesIO(content), dict(told.headers.items()), told.status_code, reason=told.reason_phrase,
            preload_content=False,
        )  # fmt: skip
        return self.build_response(request, raw)


def session_inside() -> requests.Session:
    session = requests.Session()
    session.mount(INSIDE, DjangoAdapter())
    return session
