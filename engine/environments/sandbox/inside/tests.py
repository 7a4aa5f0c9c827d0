"""The runner of a dataset's tests, statement by statement; it asks for the functions under test through the engine.

The program under test is in another sandbox. Only values come from there, never objects or code, so it cannot reach
the tests, their expected answers, or the count of what passed.
"""

import ast
import builtins
import traceback
from collections.abc import Callable

from values import CannotCross, decoded, encoded  # type: ignore[import-not-found]

Namespace = dict[str, object]
_ASKED: list[str] = []
"""What was asked of the program. From then on it may be at fault for whatever goes wrong."""


def run_tests(source: str, callables: list[str]) -> dict[str, object]:
    """Each assertion, and each bare call, at the top level is one test."""
    tree = ast.parse(source)
    given = _names(tree) & set(callables)
    namespace: Namespace = {"__name__": "tests", **{name: _proxy(name) for name in given}}
    num = passed = 0
    failure = ""
    _ASKED.clear()
    for statement in tree.body:
        is_test = isinstance(statement, ast.Assert | ast.Expr) and not _is_text(statement)
        num += is_test
        try:
            exec(compile(ast.Module([statement], []), "tests.py", "exec"), namespace)  # noqa: S102 - the tests
            passed += is_test
        except Exception as error:
            if not (is_test or _ASKED or isinstance(error, NameError)):
                raise  # the tests themselves are broken
            failure = failure or f"line {statement.lineno}: {_told(error)}"
            num += not is_test  # what follows may depend on it
    return {"num": num, "passed": passed, "failure": failure}


class SolutionRaised(Exception):
    """The function under test raised."""


class CannotAsk(BaseException):
    """The tests pass something that cannot be sent; no fault of the program, so no test may swallow it."""


def _proxy(name: str) -> Callable[..., object]:
    def call(*arguments: object, **keywords: object) -> object:
        try:
            question = {"call": name, "arguments": encoded(list(arguments)), "keywords": encoded(keywords)}
        except CannotCross as error:
            raise CannotAsk(f"an argument of {name}: {error}") from error
        _ASKED.append(name)
        answer = ask_outside(question)  # type: ignore[name-defined] # noqa: F821 - serve.py puts it here
        if "raised" in answer:
            raise _raised(*answer["raised"])
        return decoded(answer["value"])

    return call


def _raised(name: str, message: str) -> Exception:
    """The built-in exception of that name, so that tests may expect it; else one that says what it was."""
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        both = type(name, (SolutionRaised, kind), {})
        try:
            return both(message)  # type: ignore[no-any-return]
        except TypeError:
            pass  # some want more than a message
    return SolutionRaised(f"{name}: {message}")


def _names(tree: ast.Module) -> set[str]:
    """Names that the tests use and neither define nor find among the built-ins (a program must not replace those)."""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return {name for name in used if not hasattr(builtins, name)}


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _told(error: Exception) -> str:
    return traceback.format_exception_only(error)[-1].strip()[:300]
