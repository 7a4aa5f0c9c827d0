"""OWASP ASVS 5, chapter 11: hashing, sealing and generating secrets."""

import ast
import re
import subprocess
import sys
from collections.abc import Callable

import pytest
from cryptography.fernet import InvalidToken

from backend.accounts.second_factor import SecondFactorAdapter
from backend.webhooks.secret_box import new_secret, seal, unseal
from tests.backend.security.conftest import ROOT
from tests.backend.security.test_asvs_code import TREES, calls

HASH = """
import django; django.setup()
from django.contrib.auth.hashers import make_password
print(make_password("still-waters-run-deep"))
"""
NAMED_BY_OTHERS = {
    ("backend/accounts/passwords/breached.py", "sha1")
}  # the public list of breached passwords is of these
SPREADS_RETRIES = "backend/webhooks/settling.py"


@pytest.mark.long
def test_passwords_are_hashed_with_recommended_argon2id() -> None:
    """OWASP's cheat sheet of 2025: 19 MiB, two passes. In a separate process: the tests' own hashes are cheap."""
    done = subprocess.run([sys.executable, "-c", HASH], cwd=ROOT, capture_output=True, text=True, check=True)
    match = re.fullmatch(r"argon2\$argon2id\$v=19\$m=(\d+),t=(\d+),p=\d+\$.+\n", done.stdout)
    assert match and int(match[1]) >= 19 * 1024 and int(match[2]) >= 2


@pytest.mark.parametrize(
    ("sealing", "opening"),
    [(seal, unseal), (SecondFactorAdapter().encrypt, SecondFactorAdapter().decrypt)],
    ids=["webhook secrets", "second factors"],
)
def test_a_sealed_secret_that_was_touched_is_not_opened(
    sealing: Callable[[str], str], opening: Callable[[str], str]
) -> None:
    secret = new_secret()
    sealed = sealing(secret)
    assert opening(sealed) == secret and secret not in sealed
    assert sealing(secret) != sealed, "not the same twice"
    for at in (0, len(sealed) // 2, len(sealed) - 4):
        touched = sealed[:at] + ("A" if sealed[at] != "A" else "B") + sealed[at + 1 :]
        with pytest.raises(InvalidToken):
            opening(touched)


def test_no_weak_hash_is_used() -> None:
    used = {(name, word) for name in TREES for _, owner, word in calls(name) if owner in {"hashlib", "hmac"}}
    assert used >= NAMED_BY_OTHERS
    assert {word for _, word in used - NAMED_BY_OTHERS} <= {"sha256", "new", "compare_digest"}
    assert all("sha256" in ast.unparse(node) for name in TREES for node, owner, word in calls(name)
               if (owner, word) in {("hmac", "new"), ("hashlib", "new")})  # fmt: skip


def test_nothing_secret_comes_from_a_guessable_source() -> None:
    """`random` and uuid's ids are for guessable values: how long to wait before the next try."""
    loads = set()
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            loads |= {name for module in modules if name.startswith("backend/") and module in {"random", "uuid"}}
    assert loads == {SPREADS_RETRIES}
