"""`python -m engine.environments.trial`: runs every sandboxed judge once on this machine, before a job needs it.

    exit 0  every judge has started and judged, or this machine has no sandbox, which is printed
    exit 1  the sandbox works, and a judge in it does not

Invariant: prints one line, for the person who has just set this copy up.
"""

import sys
from typing import Final

from engine.environments.gym import ReasoningGym
from engine.environments.judging.verifiers import make_verifier
from engine.environments.params import ParamReader
from engine.environments.port import GraderError, Turn
from engine.environments.sandbox.outcome import Refused
from engine.environments.sandbox.run import run_python

TIMEOUT_S: Final = 120.0  # the very first start writes the bytecode of some thousand files
_CASES: Final = (
    ("regex", "^4", "42"),
    ("math_verify", "1/2", "$0.5$"),
    ("unit_tests", "assert f() == 1", "f = int('1').conjugate"),
)


def main() -> int:
    outcome = run_python("print(1)")
    if isinstance(outcome, Refused):
        print(f"No sandbox on this machine: environments that run untrusted code are refused: {outcome.reason}")  # noqa: T201
        return 0
    fault = _find_fault()
    print(fault or "The sandbox works: untrusted code can run on this machine.")  # noqa: T201
    return 1 if fault else 0


def _find_fault() -> str:
    try:
        environment = ReasoningGym(seed=0, task="countdown", params={}, timeout_s=TIMEOUT_S)
        environment.respond(environment.prompt("train", 0), [Turn(text="1")])
        for name, due, answer in _CASES:
            verify = make_verifier(ParamReader("jsonl", {"verifier": name}), timeout_s=TIMEOUT_S)
            if verify(due, answer).reward != 1.0:
                return f"{name}: the judge rejects {answer!r}, which is right for {due!r}; reinstall the packages"
    except (GraderError, ValueError) as error:
        return str(error)
    return ""


if __name__ == "__main__":
    sys.exit(main())
