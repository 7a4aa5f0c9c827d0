"""Redaction of the engine's messages for tenants."""

from textwrap import indent

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


FRAME = '  File "/opt/x/a.py", line 1, in f\n    ours()\n'
THEIRS = '  File "/box/main.py", line 3, in respond\n    theirs()\n'
HEADER = "Traceback (most recent call last):\n"
LINK = "\nDuring handling of the above exception, another exception occurred:\n\n"


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        (f'{HEADER}  File "<string>", line 1, in <module>\nKeyError: 1', "KeyError: 1"),
        (indent(f"{HEADER}{FRAME}KeyError: 1", "  "), "  KeyError: 1"),
        (f"{HEADER}{FRAME}KeyError: 1\n{LINK}{HEADER}{FRAME}ValueError: 2", "KeyError: 1\nValueError: 2"),
        (
            f"{HEADER}{THEIRS}KeyError: 1\n{LINK}{HEADER}{FRAME}ValueError: 2",
            f"{HEADER}{THEIRS}KeyError: 1\n{LINK}ValueError: 2",
        ),
        (
            '  + Exception Group Traceback (most recent call last):\n  |   File "/opt/b.py", line 3, in f\n'
            "  |     ours()\n"
            "  | ExceptionGroup: two (1 sub-exception)\n  +-+---------------- 1 ----------------\n"
            '    | Traceback (most recent call last):\n    |   File "/opt/c.py", line 4, in g\n    |     1 / 0\n'
            "    | ZeroDivisionError: division by zero",
            "  | ExceptionGroup: two (1 sub-exception)\n  +-+---------------- 1 ----------------\n"
            "    | ZeroDivisionError: division by zero",
        ),
        (
            f'{HEADER}{FRAME}  File "<template>", line 1, in top-level template code\nUndefinedError: x',
            f'{HEADER}  File "<template>", line 1, in top-level template code\nUndefinedError: x',
        ),
    ],
)
def test_every_form_of_traceback_is_recognised(text: str, redacted: str) -> None:
    assert for_tenants(text) == redacted


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("part=x host=h pid=12", "part=x host=h"),
        ("(RolloutActor pid=12, ip=10.0.0.2) hello", "(RolloutActor) hello"),
        ("died.\n\tpid: 12\n\tname: x", "died.\n\n\tname: x"),
        ("lost, PID=7; again", "lost; again"),
        ("worker exited, process ID: 4711", "worker exited"),
        (
            "\x1b[36mray::B.run()\x1b[39m (pid=1, ip=10.0.0.7, repr=<a.B object at 0x7f (x)>)\nKeyError",
            "ray::B.run()\nKeyError",
        ),
        ("\x1b[1;31mred\x1b[0m \x1b]0;title\x07\x1b[2K\x9b1mend", "red end"),
        ("\ufffd[31mred\ufffd[0m and \\x1b[1mbold\\x1b[0m and \\033[4mline", "red and bold and line"),
        ("rate[5m], rapid=12, stupid: 3, [31m", "rate[5m], rapid=12, stupid: 3, [31m"),
    ],
)
def test_processes_and_terminal_colours_are_removed(text: str, redacted: str) -> None:
    assert for_tenants(text) == redacted


def test_store_address_hides_the_stores_location() -> None:
    assert place_in_store("file:///srv/x/jobs/job_1/attempt-1/checkpoints/step-5") == (
        "jobs/job_1/attempt-1/checkpoints/step-5"
    )
    assert place_in_store("s3://ours/prefix/jobs/job_1/a") == "jobs/job_1/a"
    assert place_in_store("") == ""
