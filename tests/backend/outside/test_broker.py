"""Valkey over TLS: for health checks by redis-py, and for Celery's messages by kombu."""

import os
from typing import Any
from urllib.parse import urlsplit

import pytest
from kombu import Connection
from kombu.exceptions import OperationalError

from backend import health
from backend.environment import read_environment
from backend.missing import MissingSetting
from tests.backend.outside.conftest import REFUSED, RIGHT, Company, advice

OURS = os.environ.get("LAMINAR_BROKER_URL", "")


def over_tls(company: Company, port: int, case: str) -> str:
    parts = urlsplit(OURS)
    server = parts.netloc.replace(f"127.0.0.1:{parts.port}", f"{company.host(case)}:{port}")
    url = parts._replace(scheme="rediss", netloc=server).geturl()
    variables = dict(os.environ) | {"LAMINAR_BROKER_URL": url, "LAMINAR_CA_FILE": company.authorities(case)}
    return read_environment(variables).broker_url


def test_messages_and_health_go_over_tls(company: Company, broker_port: int, settings: Any) -> None:
    url = over_tls(company, broker_port, RIGHT)
    with Connection(url) as celery:
        queue = celery.SimpleQueue("laminar-over-tls")
        queue.put({"id": 1})
        message = queue.get(timeout=10)
        message.ack()
        assert message.payload == {"id": 1}
    settings.CELERY_BROKER_URL = url
    assert health._broker() == ""


@pytest.mark.parametrize("case", REFUSED)
def test_impostor_broker_gets_no_password_and_setting_is_named(
    company: Company, broker_port: int, case: str, settings: Any
) -> None:
    url = over_tls(company, broker_port, case)
    with Connection(url) as celery, pytest.raises(OperationalError, match="CERTIFICATE_VERIFY_FAILED"):
        celery.ensure_connection(max_retries=1, interval_start=0, interval_step=0, timeout=5)
    settings.CELERY_BROKER_URL = url
    problem = health._broker()
    assert advice(case) in problem and "LAMINAR_BROKER_URL" in problem and "localhost" not in problem


def test_certificate_check_is_disabled_only_explicitly(company: Company, broker_port: int, settings: Any) -> None:
    parts = urlsplit(over_tls(company, broker_port, "none"))
    assert parts.query == "ssl_cert_reqs=required"
    settings.CELERY_BROKER_URL = parts._replace(query="ssl_cert_reqs=none").geturl()
    assert health._broker() == ""


@pytest.mark.parametrize("query", ["ssl_ca_cert=/x", "ssl_cert_reqs=CERT_MAYBE", "ssl_verify=0"])
def test_what_no_library_would_understand_is_refused(query: str) -> None:
    variables = dict(os.environ) | {"LAMINAR_BROKER_URL": f"rediss://localhost/0?{query}"}
    with pytest.raises(MissingSetting, match=r"^LAMINAR_BROKER_URL: "):
        read_environment(variables)


def test_file_without_authority_is_refused_before_connecting() -> None:
    for path in ("/nonexistent.pem", __file__):
        with pytest.raises(MissingSetting, match=rf"^LAMINAR_CA_FILE: .*{path}"):
            read_environment(dict(os.environ) | {"LAMINAR_CA_FILE": path})
