"""New passwords are checked against context words and known breaches, without a network."""

import hashlib
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.test import Client

from backend.accounts.acting import Acting
from backend.accounts.models import Role, Team, User
from backend.accounts.passwords.breached import fault_of, is_known, refuse_faulty_file
from backend.accounts.people.invitations import invite
from backend.clock import database_now
from backend.missing import MissingSetting

pytestmark = pytest.mark.django_db
GOOD = "still-waters-run-deep"


def refused(password: str, user: User | None = None) -> bool:
    try:
        validate_password(password, user)
    except ValidationError:
        return True
    return False


def file_of(folder: Path, passwords: list[str], *, end: str = "\r\n", last: bool = True) -> Path:
    """As downloaded: with CRLF line ends, the last one optional."""
    lines = sorted(f"{hashlib.sha1(each.encode()).hexdigest().upper()}:{len(each)}" for each in passwords)
    path = folder / "pwned.txt"
    path.write_bytes((end.join(lines) + (end if last and lines else "")).encode())
    return path


@pytest.mark.parametrize(
    "password",
    [
        *("laminar-2026", "Laminar!Laminar!", "alice@example.org", "Alice.Liddell1"),
        *("wonderland99", "Wonder-Land-2026", "ants2026!!"),
    ],
)  # fmt: skip
def test_words_around_the_person_are_no_password(team: Team, alice: User, password: str) -> None:
    alice.first_name, alice.last_name = "Alice", "Liddell"
    team.name = "Ants of Wonder Land"
    team.save()
    assert refused(password, alice)


def test_a_word_too_many_does_no_harm(alice: User) -> None:
    for password in (GOOD, f"{GOOD}-alice", "laminar-rivers-find-their-way"):
        assert not refused(password, alice), password


def test_the_team_that_invites_is_a_word_around_the_invited(team: Team, alice: User) -> None:
    team.name = "Wonderland"
    team.save()
    owner = Acting(user=alice, team=team, role=Role.OWNER)
    _, token = invite(owner, email="new@example.org", role=Role.VIEWER, now=database_now())
    answer = Client().post(f"/invitations/{token}", {"password": "wonderland99", "again": "wonderland99"})
    assert answer.status_code == 422 and "names of your team" in answer.content.decode()
    assert not User.objects.filter(email="new@example.org").exists()


@pytest.mark.parametrize("num", [0, 1, 2, 3, 50, 1_000])
@pytest.mark.parametrize(("end", "last"), [("\r\n", True), ("\n", True), ("\n", False)])
def test_bisection_finds_exactly_the_known_passwords(tmp_path: Path, num: int, end: str, last: bool) -> None:
    rng = random.Random(num)
    passwords = [f"password-{rng.random()}" for _ in range(num)]
    path = file_of(tmp_path, passwords, end=end, last=last)
    assert all(is_known(path, each) for each in passwords)
    assert not any(is_known(path, f"{n}-not-in-there") for n in range(200))


def test_a_breached_password_is_taken_nowhere(settings: Any, tmp_path: Path, alice: User) -> None:
    assert not refused(GOOD, alice)
    path = file_of(tmp_path, [GOOD, "another one"])
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, breached_passwords_file=str(path))
    assert refused(GOOD, alice) and not refused("rivers-find-their-way", alice)
    path.unlink()
    assert refused("rivers-find-their-way", alice), "unchecked passwords are refused"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        ("", "must have lines such as"),
        ("hunter2\nsecret\n", "got b'hunter2"),
        (f"{'F' * 40}:1\n{'0' * 40}:1\n", "must be ordered by hash"),
        (f"{'A' * 32}:1\n", "SHA-1 in 40 hex digits"),
    ],
)
def test_a_file_that_is_none_is_refused_at_the_start(
    settings: Any, tmp_path: Path, content: str | None, said: str
) -> None:
    path = tmp_path / "pwned.txt"
    if content is not None:
        path.write_text(content)
    assert said in fault_of(path)
    settings.ENVIRONMENT = replace(settings.ENVIRONMENT, breached_passwords_file=str(path))
    with pytest.raises(MissingSetting, match="LAMINAR_BREACHED_PASSWORDS_FILE"):
        refuse_faulty_file()
    assert fault_of(file_of(tmp_path, [str(n) for n in range(300)])) == ""
