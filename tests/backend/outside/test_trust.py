"""Trusted authorities are read once, and again after their file changed."""

import os
from pathlib import Path

from backend.outside.trust import trusted
from tests.certificates import Authority


def names(file: Path) -> set[str]:
    certificates = repr(trusted(str(file)).get_ca_certs())
    return {name for name in ("first authority", "second authority") if name in certificates}


def test_changed_authorities_are_read_again(tmp_path: Path) -> None:
    first, second = Authority(tmp_path, "first authority"), Authority(tmp_path, "second authority")
    file = tmp_path / "authorities.pem"
    file.write_bytes(first.file.read_bytes())
    assert names(file) == {"first authority"}
    assert trusted(str(file)) is trusted(str(file))
    file.write_bytes(second.file.read_bytes())
    os.utime(file, ns=(1, 1))
    assert names(file) == {"second authority"}
