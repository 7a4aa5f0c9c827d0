"""The commands of a site: `make up`, `down`, `status` and `logs`."""

import fcntl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from infra.local.errors import LocalError
from infra.local.home import PROJECT, Home, read_json
from infra.local.interruption import uninterrupted
from infra.local.processes import end_belongings, is_alive, wait_until_gone

MAX_QUICK_FAILURES = 6  # of one service in a row: it is broken, not slow
# A distant net, counted from the last service that came up: the time of a start depends on the machine's other work.
GIVES_UP_AFTER_S = 1_800.0
REPORTS_EVERY_S = 15.0
DOWN_WITHIN_S = 90.0


def supervisor_status(home: Home) -> Mapping[str, Any] | None:
    """The status that the supervisor wrote, if it lives."""
    status = read_json(home.status_file)
    if status is None or not is_alive(status["supervisor"]["pid"], status["supervisor"]["started_at"]):
        return None
    return status


def up(home: Home, only: Sequence[str] = ()) -> None:
    """Start the supervisor, unless it runs, and wait until every service is healthy. A line for each as it comes, and
    every few seconds for those that are still missing.

    Interrupted, it ends the supervisor that it started, and thereby all services.
    """
    home.prepare()
    child = None
    try:
        if supervisor_status(home) is None:
            child = _start_supervisor(home, only)
        _wait_until_up(home, child)
    except KeyboardInterrupt:
        if child is not None:
            with uninterrupted():
                _end_supervisor(home, child)
        raise


def _start_supervisor(home: Home, only: Sequence[str]) -> subprocess.Popen[bytes]:
    home.status_file.unlink(missing_ok=True)
    with (home.logs / "supervisor.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "infra.local", "--home", str(home.folder), "supervise", *only],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=PROJECT,
            start_new_session=True,
        )


def _end_supervisor(home: Home, child: subprocess.Popen[bytes]) -> None:
    child.terminate()
    try:
        child.wait(DOWN_WITHIN_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
        end_belongings(home)


def _wait_until_up(
    home: Home,
    child: subprocess.Popen[bytes] | None,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    begun = came_up_at = reported_at = clock()
    shown: set[str] = set()
    while True:
        status = read_json(home.status_file)
        if status is not None:
            _raise_problem(status)
            for name, service in status["services"].items():
                if service["state"] == "healthy" and name not in shown:
                    shown.add(name)
                    came_up_at = reported_at = clock()
                    print(f"  {name:<10} up after {came_up_at - begun:4.1f} s", flush=True)
            if shown and shown >= set(status["services"]):
                return
            _raise_broken(status["services"])
        if child is not None and child.poll() is not None and not _is_supervised(home):
            _raise_problem(read_json(home.status_file) or {})
            raise LocalError(f"the supervisor ended at once; see {home.logs / 'supervisor.log'}")
        if clock() - came_up_at > GIVES_UP_AFTER_S:
            late = _describe_missing(status, shown)
            raise LocalError(f"nothing came up for {GIVES_UP_AFTER_S:.0f} s; missing: {late}; see `make logs`")
        if clock() - reported_at >= REPORTS_EVERY_S:
            reported_at = clock()
            print(f"  waiting, {reported_at - begun:.0f} s so far: {_describe_missing(status, shown)}", flush=True)
        sleep(0.2)


def _describe_missing(status: Mapping[str, Any] | None, shown: Set[str]) -> str:
    if status is None:
        return "the supervisor"
    services = status["services"]
    return ", ".join(f"{name} ({services[name]['state']})" for name in services if name not in shown)


def _is_supervised(home: Home) -> bool:
    """Somebody holds the lock: perhaps another `up`'s supervisor, begun a moment before ours."""
    with home.lock_file.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _raise_problem(status: Mapping[str, Any]) -> None:
    if status.get("problem"):
        raise LocalError(status["problem"])


def _raise_broken(services: Mapping[str, Mapping[str, Any]]) -> None:
    broken = [
        name
        for name, service in services.items()
        if service["state"] != "healthy" and service["failures"] >= MAX_QUICK_FAILURES
    ]
    if broken:
        raise LocalError(f"keeps crashing: {', '.join(broken)}; see `make logs`")


def down(home: Home) -> None:
    status = supervisor_status(home)
    if status is not None:
        pid, started_at = status["supervisor"]["pid"], status["supervisor"]["started_at"]
        subprocess.run(["kill", "-TERM", str(pid)], check=False)
        if not wait_until_gone(pid, started_at, timeout_s=DOWN_WITHIN_S):
            subprocess.run(["kill", "-KILL", str(pid)], check=False)
            wait_until_gone(pid, started_at, timeout_s=10)
    left = end_belongings(home)
    home.forget_alias()
    if status is None:
        print("nothing was running" if not left else f"the supervisor had died; stopped its {left} remaining processes")
    else:
        print("stopped; data stays in .laminar/")


def print_status(home: Home) -> bool:
    status = supervisor_status(home)
    if status is None:
        print("not running; start it with `make up`")
        return False
    for name, service in status["services"].items():
        print(f"{name:<10} {service['state']:<11} pid {service['pid'] or '-':<8} restarts {service['restarts']}")
    if status.get("shortage"):
        print(f"\n  cannot write: {status['shortage']}. Free some space; services then continue.")
    print_addresses(home)
    return all(service["state"] == "healthy" for service in status["services"].values())


def print_addresses(home: Home) -> None:
    local = read_json(home.local_json)
    if local is not None:
        print(f"\n  {local['url']}\n  sign in as {local['user']} with {local['password']}")
        print(f"  API key and other settings: {home.local_json}")


def show_logs(home: Home, services: Sequence[str], *, follow: bool) -> None:
    files = [home.logs / f"{name}.log" for name in services] or sorted(home.logs.glob("*.log"))
    missing = [file.stem for file in files if not file.exists()]
    if missing or not files:
        known = ", ".join(sorted(file.stem for file in home.logs.glob("*.log"))) or "none yet; run `make up` first"
        raise LocalError(f"no logs of {', '.join(missing) or 'any service'}; there are logs of: {known}")
    try:
        subprocess.run(["tail", "-n", "20", *(["-F"] if follow else []), "--", *map(str, files)], check=False)
    except KeyboardInterrupt:
        print()
