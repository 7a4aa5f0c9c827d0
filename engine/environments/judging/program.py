"""A model's program in a sandbox of its own, and the border that its messages pass.

The program shares its process with the code that sends its messages (inside/solution.py), so it can send any JSON.

Invariants:
- a message that leaves here has the announced types and can be sent to the tests, whatever the program sent;
- from the moment that the program was started every failure of a call is an answer, which fails a test; only a host
  without a core for it raises.
"""

from types import TracebackType
from typing import Final, Self

from engine.environments.judging.graders import grader_error, inside_file
from engine.environments.sandbox.inside.frames import packed
from engine.environments.sandbox.outcome import Limits, Starved
from engine.environments.sandbox.own_time import OwnTime
from engine.environments.sandbox.worker import CallFailed, Worker

MAX_NAME: Final = 200
MAX_MESSAGE: Final = 300

Answer = dict[str, object]
"""{"value": …} or {"raised": [name, message]}"""


class Program:
    def __init__(self, program: str, *, limits: Limits) -> None:
        """Raises `GraderError` if the sandbox does not start."""
        files = {name: inside_file(name) for name in ("values.py",)}
        files |= {"main.py": inside_file("solution.py"), "solution.py": program.encode(errors="replace").decode()}
        self._own = OwnTime.scaled(limits.wall_s, limits.cpu_s)
        try:
            self._worker = Worker(files=files, limits=limits, cpu_s=limits.cpu_s)
        except CallFailed as error:
            raise grader_error("unit_tests", error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._worker.close()

    @property
    def is_alive(self) -> bool:
        return self._worker.is_alive

    def load(self) -> tuple[list[str], str]:
        """Names of the program's callables, and why it did not load."""
        sent = self._ask("load_solution")
        names = sent.get("names") if isinstance(sent, dict) else None
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            usable = [name for name in names if name.isidentifier() and len(name) <= MAX_NAME]
            return (usable, "") if _can_be_sent(usable) else ([], "it has too many names")
        return [], _text_of(sent["raised"]) if isinstance(sent, dict) and "raised" in sent else "it sent no names"

    def call(self, name: object, arguments: object, keywords: object) -> Answer:
        sent = self._ask("call_solution", name, arguments, keywords)
        match sent if isinstance(sent, dict) and len(sent) == 1 else None:
            case {"value": value}:
                answer: Answer = {"value": value}
                return answer if _can_be_sent(answer) else _raised("ValueError", "its value is too long or too deep")
            case {"raised": [str() as kind, str() as message]}:
                return _raised(kind, message)
        return _raised("TypeError", "no answer")

    def _ask(self, function: str, *arguments: object) -> object:
        if not self._worker.is_alive:
            return _raised("SystemExit", "the program has ended")
        try:
            return self._worker.call(function, *arguments, own=self._own)
        except CallFailed as error:
            if isinstance(error.outcome, Starved):
                raise grader_error("unit_tests", error) from error
            if error.outcome is not None:
                return _raised("SystemExit", f"the program {error.outcome}")
            return _raised("RuntimeError", error.last_line)


def _raised(kind: str, message: str) -> Answer:
    return {"raised": [kind[:MAX_NAME], message[:MAX_MESSAGE]]}


def _text_of(raised: object) -> str:
    parts = raised if isinstance(raised, list) else [raised]
    return ": ".join(part for part in parts if isinstance(part, str))[:MAX_MESSAGE]


def _can_be_sent(message: object) -> bool:
    """Text grows when encoded again: the program may have sent `é` in two bytes, we send it in six."""
    try:
        packed({"answer": message, "nonce": "0" * 64})
    except (ValueError, RecursionError):
        return False
    return True
