"""HTTP requests to the OpenID provider: over TLS that also accepts certificates of the configured authorities."""

import logging
from ssl import SSLContext
from typing import Any

from django.conf import settings
from requests import RequestException, Session
from requests.adapters import HTTPAdapter

from backend.outside.trust import trouble_with_certificate, trusted

log = logging.getLogger(__name__)


class _Trusting(HTTPAdapter):
    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        super().init_poolmanager(*arguments, **options, ssl_context=_make_context())

    def proxy_manager_for(self, *arguments: Any, **options: Any) -> Any:
        return super().proxy_manager_for(*arguments, **options, ssl_context=_make_context())


def trusting(session: Session) -> Session:
    session.mount("https://", _Trusting())
    return session


def _make_context() -> SSLContext:
    return trusted(settings.ENVIRONMENT.ca_file)


def note_silence(error: RequestException) -> None:
    """Logs the cause for the operator. Users get a message without it."""
    trouble = trouble_with_certificate(error, "LAMINAR_OIDC_ISSUER")
    log.error("the OpenID provider is unreachable: %s", trouble or error)
