"""One Python script run in a fresh sandbox, to its end or its deadline."""

from collections.abc import Mapping

from engine.environments.sandbox.child import Child
from engine.environments.sandbox.outcome import Limits, Outcome, Refused, SandboxUnavailable

DEFAULT_LIMITS = Limits()


def run_python(
    code: str, *, stdin: str = "", files: Mapping[str, str] | None = None, limits: Limits = DEFAULT_LIMITS
) -> Outcome:
    """`files` lie beside the script, in /box, and cannot be written; /tmp can."""
    try:
        child = Child(files={"main.py": code, **(files or {})}, limits=limits, stdin=stdin.encode())
    except SandboxUnavailable as error:
        return Refused(reason=str(error))
    deadline = child.began_at + limits.wall_s
    child.pump(lambda: child.has_ended, deadline)
    return child.end(until=deadline)
