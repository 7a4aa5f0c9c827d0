"""LAMINAR_CA_FILE in `doctor`: each of its faults is found by name, before or after it has an effect."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from backend.operating.checks import authorities
from tests.backend.operating.checks.conftest import faults
from tests.backend.operating.conftest import Broken
from tests.certificates import Authority

NOW = datetime.now(UTC)
BEFORE = NOW - timedelta(days=60)
"""A certificate with a day left was far from its end then."""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


def test_valid_authorities_are_good_and_each_listed(authority: Authority, tmp_path: Path) -> None:
    content = authority.file.read_bytes() + b"# the next one\n" + Authority(tmp_path, "next").file.read_bytes()
    findings = list(authorities.judge(content, BEFORE))
    assert faults(findings) == set()
    assert [each.observation.split()[0] for each in findings] == ["CN=ours", "CN=next"]


@pytest.mark.parametrize(("now", "fault"), [(NOW, "authority.expires"), (NOW + timedelta(days=2), "authority.expired")])
def test_one_that_ends_soon_or_has_ended_is_found(authority: Authority, now: datetime, fault: str) -> None:
    assert faults(authorities.judge(authority.file.read_bytes(), now)) == {fault}


def test_expired_authority_is_found_next_to_a_valid_one(authority: Authority, tmp_path: Path) -> None:
    last = Authority(tmp_path, "next").file.read_bytes()
    cut = authority.file.read_bytes().replace(b"M", b"A", 1)
    assert faults(authorities.judge(last + cut, BEFORE)) == {"authority.no_certificate"}


def test_a_server_s_own_certificate_is_a_warning(authority: Authority) -> None:
    leaf = authority.certificate_for("db.example.org").chain.read_bytes()
    assert faults(authorities.judge(leaf, BEFORE)) == {"authority.of_a_server"}


@pytest.mark.parametrize("content", [b"", b"\x30\x82\x01\x0a", b"-----BEGIN PRIVATE KEY-----\nAA==\n"])
def test_a_file_without_certificates_is_found(content: bytes) -> None:
    assert faults(authorities.judge(content, NOW)) == {"authority.no_certificate"}


@pytest.mark.django_db
def test_unreadable_file_is_found_and_unset_is_good(broken: Broken, tmp_path: Path, authority: Authority) -> None:
    for path in (tmp_path / "gone.pem", tmp_path):
        assert faults(authorities.check_authorities(broken(ca_file=str(path)))) == {"authority.unreadable"}
    assert faults(authorities.check_authorities(broken(ca_file=""))) == set()
    assert faults(authorities.check_authorities(broken(ca_file=str(authority.file)))) == {"authority.expires"}
