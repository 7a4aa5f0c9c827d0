"""Redaction of the engine's messages for tenants."""

import pytest

from engine.spec.for_tenants import for_tenants, place_in_store


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("cannot read /mnt/fsx/models/big/config.json", "cannot read …/config.json"),
        ("'/srv/a/b': no such file, see file:///srv/a/c.", "'…/b': no such file, see …/c."),
        ("folder=/srv/a/b/ left", "folder=…/b left"),
        ("https://example.org/a/b and s3://bucket/a/b stay", "https://example.org/a/b and s3://bucket/a/b stay"),
        ("and/or, 3/4, /dev/shm/x, /box/main.py", "and/or, 3/4, /dev/shm/x, /box/main.py"),
        ("no slash", "no slash"),
    ],
)
def test_path_is_cut_to_its_last_name(text: str, redacted: str) -> None:
    assert for_tenants(text) == redacted


def test_traceback_keeps_the_customers_frames() -> None:
    text = (
        'Traceback (most recent call last):\n  File "/opt/x/engine/a.py", line 1, in f\n    ours()\n'
        '  File "/box/main.py", line 3, in respond\n    theirs()\nValueError: mine'
    )
    assert for_tenants(text) == (
        'Traceback (most recent call last):\n  File "/box/main.py", line 3, in respond\n    theirs()\nValueError: mine'
    )


def test_traceback_of_our_frames_leaves_only_the_error() -> None:
    text = 'it failed\nTraceback (most recent call last):\n  File "/opt/x/a.py", line 1, in f\n    ours()\nKeyError: 1'
    assert for_tenants(text) == "it failed\nKeyError: 1"


def test_store_address_hides_the_stores_location() -> None:
    assert place_in_store("file:///srv/x/jobs/job_1/attempt-1/checkpoints/step-5") == (
        "jobs/job_1/attempt-1/checkpoints/step-5"
    )
    assert place_in_store("s3://ours/prefix/jobs/job_1/a") == "jobs/job_1/a"
    assert place_in_store("") == ""
