"""Runs one Python script in a fresh sandbox until it ends or its time is over."""

from collections.abc import Mapping

from engine.environments.sandbox.child import Child
from engine.environments.sandbox.outcome import Limits, Outcome, Refused, SandboxUnavailable
from engine.environments.sandbox.own_time import OwnTime
from engine.environments.sandbox.watch import NEW_BORN

DEFAULT_LIMITS = Limits()


def run_python(
    code: str,
    *,
    stdin: str = "",
    files: Mapping[str, str] | None = None,
    limits: Limits = DEFAULT_LIMITS,
    own: OwnTime | None = None,
) -> Outcome:
    """`files`: read-only next to the script, in /box; only /tmp is writable. `own`: time shared with other runs."""
    own = own or OwnTime.scaled(limits.wall_s, limits.cpu_s)
    try:
        child = Child(files={"main.py": code, **(files or {})}, limits=limits, stdin=stdin.encode())
    except SandboxUnavailable as error:
        return Refused(reason=str(error))
    watch = child.watch(own, before=NEW_BORN)
    child.pump(lambda: child.has_ended, watch)
    outcome = child.end(watch)
    watch.finish()
    return outcome
