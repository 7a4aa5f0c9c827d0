"""`make up` waits as long as services come up, and shows what it waits for. Time is simulated."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from infra.local.errors import LocalError
from infra.local.home import Home
from infra.local.site_commands import GIVES_UP_AFTER_S, REPORTS_EVERY_S, _wait_until_up

Wait = Callable[[Mapping[float, Mapping[str, str]]], float]


@pytest.fixture
def wait(tmp_path: Path) -> Wait:
    """Waits for a supervisor that writes these states of services at these times; returns the time of the end."""
    home = Home(tmp_path)
    home.prepare()

    def run(changes: Mapping[float, Mapping[str, str]]) -> float:
        now, left = 0.0, sorted(changes.items())

        def sleep(seconds: float) -> None:
            nonlocal now
            now += 5 * seconds
            while left and left[0][0] <= now:
                services = {name: {"state": state, "failures": 0} for name, state in left.pop(0)[1].items()}
                home.status_file.write_text(json.dumps({"problem": "", "services": services}))

        _wait_until_up(home, None, clock=lambda: now, sleep=sleep)
        return now

    return run


def test_slow_start_is_awaited_while_services_come_up(wait: Wait, capsys: pytest.CaptureFixture[str]) -> None:
    late = 0.9 * GIVES_UP_AFTER_S
    changes = {
        1.0: {"postgres": "starting", "ray": "waiting", "web": "waiting"},
        late: {"postgres": "healthy", "ray": "starting", "web": "waiting"},
        2 * late: {"postgres": "healthy", "ray": "healthy", "web": "starting"},
        3 * late: {"postgres": "healthy", "ray": "healthy", "web": "healthy"},
    }
    assert wait(changes) >= 3 * late > GIVES_UP_AFTER_S
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if " up after " in line] == ["postgres", "ray", "web"]
    assert any(line.endswith("so far: postgres (starting), ray (waiting), web (waiting)") for line in lines)
    assert any(line.endswith("so far: web (starting)") for line in lines)
    waiting = [line for line in lines if "waiting, " in line]
    assert len(waiting) == pytest.approx(3 * late / REPORTS_EVERY_S, rel=0.1)


def test_start_without_any_progress_is_given_up_by_name(wait: Wait) -> None:
    with pytest.raises(LocalError, match=r"nothing came up for 1800 s; missing: ray \(restarting\)"):
        wait({1.0: {"postgres": "healthy", "ray": "restarting"}})


def test_supervisor_that_writes_no_status_is_named(wait: Wait, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(LocalError, match="missing: the supervisor"):
        wait({})
    assert f"  waiting, {REPORTS_EVERY_S:.0f} s so far: the supervisor" in capsys.readouterr().out
