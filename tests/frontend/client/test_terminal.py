"""The command line in a pseudo-terminal: tables fit, colours can be turned off, a progress bar is drawn."""

import os
import pty
import re
import subprocess
import sys

import pytest

from backend.jobs.models import Job, JobState
from tests.frontend.client.conftest import CLIENT, Shell
from tests.frontend.seed import World, ended, running, submitted

COLUMNS = 80
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def in_a_terminal(shell: Shell, *arguments: str, **more: str) -> tuple[int, str]:
    """-> exit code and output, with control sequences."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, **shell.environment, "PYTHONPATH": str(CLIENT), "TERM": "xterm-256color"}
    environment |= {"COLUMNS": str(COLUMNS), "LINES": "40"} | more
    environment.pop("NO_COLOR", None) if "NO_COLOR" not in more else None
    process = subprocess.Popen(
        [sys.executable, "-m", "laminar_client", *arguments],
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            piece = os.read(ours, 65_536)
        except OSError:  # Linux raises this when the last writer has closed
            break
        if not piece:
            break
        written += piece
    os.close(ours)
    shell.printed.append(written.decode())
    return process.wait(30), written.decode()


@pytest.fixture
def long_names(world: World) -> list[Job]:
    return [submitted(world, name=f"{number} " + "long name " * 11) for number in range(3)]


@pytest.mark.long
def test_tables_fit_the_terminal_and_keep_ids_whole(shell: Shell, long_names: list[Job]) -> None:
    for arguments in (["list"], ["queue"], ["show", long_names[0].pk], ["whoami"], ["quota"], ["keys"]):
        code, written = in_a_terminal(shell, *arguments)
        assert code == 0
        widths = [len(CONTROL.sub("", line).rstrip()) for line in written.splitlines()]
        assert max(widths) <= COLUMNS, arguments
    _, written = in_a_terminal(shell, "list")
    assert all(job.pk in written for job in long_names)


@pytest.mark.long
def test_colours_are_used_and_can_be_turned_off(shell: Shell, world: World) -> None:
    running(world, steps_done=1)
    colour = re.compile(r"\x1b\[[0-9;]*3[0-9]m")
    assert colour.search(in_a_terminal(shell, "list")[1])
    assert not colour.search(in_a_terminal(shell, "list", "--no-color")[1])
    assert not colour.search(in_a_terminal(shell, "list", NO_COLOR="1")[1])
    assert "\x1b" not in in_a_terminal(shell, "list", "--json")[1]


@pytest.mark.long
def test_watch_draws_the_prompts_of_an_evaluation(shell: Shell, world: World) -> None:
    job = running(world, steps_done=0, training={"steps": 0}, evaluation={"prompts": 40})
    Job.objects.filter(pk=job.pk).update(answered=17)
    ended(job, JobState.CANCELLED, message="Enough.")
    assert "17/40" in CONTROL.sub("", in_a_terminal(shell, "watch", job.pk)[1])
    assert "prompts answered 17/40" in shell("watch", job.pk, code=1).stdout


def test_watch_draws_a_bar_and_ends_with_the_job(shell: Shell, world: World) -> None:
    job = running(world, steps_done=3, name="Evil")
    ended(job, JobState.SUCCEEDED, message="All done.\x1b]0;owned\x07")
    code, written = in_a_terminal(shell, "watch", job.pk)
    assert code == 0
    assert "3/120" in CONTROL.sub("", written)
    assert "━" in written
    assert "\x1b]0;" not in written
    assert "succeeded: All done." in CONTROL.sub("", written)
