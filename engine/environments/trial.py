"""`python -m engine.environments.trial`: untrusted code is tried once on this machine, before a job finds out.

    0  every judge that runs in the sandbox has started and judged, or there is no sandbox here, which is told
    1  the sandbox stands, and something that is to run in it does not

Invariant: what it says is one line, for whoever has just set this copy up.
"""

import sys
from typing import Final

from engine.environments.gym import ReasoningGym
from engine.environments.params import ParamReader
from engine.environments.port import GraderError, Turn
from engine.environments.sandbox.outcome import Refused
from engine.environments.sandbox.run import run_python
from engine.environments.verifiers import make_verifier

TIMEOUT_S: Final = 120.0  # the first start of all writes the bytecode of some thousand files
_JUDGED: Final = (
    ("regex", "^4", "42"),
    ("math_verify", "1/2", "$0.5$"),
    ("unit_tests", "assert f() == 1", "f = int('1').conjugate"),
)


def main() -> int:
    found = run_python("print(1)")
    if isinstance(found, Refused):
        print(f"There is no sandbox here, so environments that run untrusted code are refused: {found.reason}")  # noqa: T201
        return 0
    wrong = _wrong()
    print(wrong or "Untrusted code runs here, in the sandbox.")  # noqa: T201
    return 1 if wrong else 0


def _wrong() -> str:
    try:
        environment = ReasoningGym(seed=0, task="countdown", params={}, timeout_s=TIMEOUT_S)
        environment.respond(environment.prompt("train", 0), [Turn(text="1")])
        for name, due, said in _JUDGED:
            verify = make_verifier(ParamReader("jsonl", {"verifier": name}), timeout_s=TIMEOUT_S)
            if verify(due, said).reward != 1.0:
                return f"{name}: it does not say that {said!r} is right where {due!r} is due"
    except (GraderError, ValueError) as error:
        return str(error)
    return ""


if __name__ == "__main__":
    sys.exit(main())
