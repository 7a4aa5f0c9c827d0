"""The control plane's environment, read once."""

import os
import subprocess
import sys

import pytest

from backend.environment import read_environment
from backend.missing import MissingSetting


def test_what_is_not_set_is_named() -> None:
    with pytest.raises(MissingSetting, match="LAMINAR_SECRET_KEY"):
        read_environment({})


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("LAMINAR_DEBUG", "true", "must be 0 or 1, got 'true'"),
        ("LAMINAR_KEEP_LOGS_DAYS", "a week", "must be a whole number from 0 to 10000, got 'a week'"),
        ("LAMINAR_SESSION_DAYS", "0", "must be a whole number from 1 to 10000, got '0'"),
        ("LAMINAR_RATE_SCALE", "nan", "must be a number above 0, got 'nan'"),
        ("LAMINAR_LOG_FORMAT", "xml", "text or json, got 'xml'"),
        ("LAMINAR_CA_FILE", "/nowhere.pem", "must be a file of certificates"),
    ],
)
def test_wrong_value_is_refused_by_its_variable_and_what_fits(name: str, text: str, wanted: str) -> None:
    values = {each: value for each, value in os.environ.items() if each.startswith("LAMINAR_")}
    with pytest.raises(MissingSetting, match=f"^{name}: {wanted}"):
        read_environment(values | {name: text})


def test_what_is_printed_of_it_has_no_secret() -> None:
    values = {name: value for name, value in os.environ.items() if name.startswith("LAMINAR_")}
    assert repr(read_environment(values)) == f"<the settings of {values['LAMINAR_PUBLIC_URL']}>"


@pytest.mark.long
@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("sslmode=disable", ""),
        ("sslmode=verify-full", "SSL was required"),  # this server has no certificate
        ("ssl_mode=verify-full", 'invalid connection option "ssl_mode"'),
    ],
)
def test_database_keeps_the_addresss_tls_options(option: str, complaint: str) -> None:
    connect = (
        "import django, psycopg; django.setup(); from django.db import connection as made;"
        "psycopg.connect(**made.get_connection_params()).close()"
    )
    environment = os.environ | {"LAMINAR_DATABASE_URL": f"{os.environ['LAMINAR_DATABASE_URL']}?{option}"}
    done = subprocess.run([sys.executable, "-c", connect], env=environment, capture_output=True, text=True)
    assert (done.returncode == 0) == (complaint == "") and complaint in done.stderr, done.stderr
