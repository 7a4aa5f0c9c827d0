"""Runs a data set's tests, statement by statement, and calls the functions under test through the engine.

The program under test is in another sandbox. Only values come from there, never objects or code, so it cannot reach
the tests, their expected answers, or the count of passed tests.
"""

import ast
import builtins
import traceback
from collections.abc import Callable

from values import CannotCross, decoded, encoded  # type: ignore[import-not-found]

Namespace = dict[str, object]
_CALLED: list[str] = []
"""Functions of the program that the tests have called. After the first call any error may be the program's fault."""


def run_tests(source: str, callables: list[str]) -> dict[str, object]:
    """Each assertion, and each bare call, at the top level is one test."""
    tree = ast.parse(source)
    given = _names(tree) & set(callables)
    namespace: Namespace = {"__name__": "tests", **{name: _make_proxy(name) for name in given}}
    num = passed = 0
    failure = ""
    _CALLED.clear()
    for statement in tree.body:
        is_test = isinstance(statement, ast.Assert | ast.Expr) and not _is_text(statement)
        num += is_test
        try:
            exec(compile(ast.Module([statement], []), "tests.py", "exec"), namespace)  # noqa: S102 - the tests
            passed += is_test
        except Exception as error:
            if not (is_test or _CALLED or isinstance(error, NameError)):
                raise  # the tests themselves are broken
            failure = failure or f"line {statement.lineno}: {_describe(error)}"
            num += not is_test  # counts as a failed test: later statements may depend on it
    return {"num": num, "passed": passed, "failure": failure}


class SolutionRaised(Exception):
    """The function under test raised."""


class CannotAsk(BaseException):
    """The tests pass an argument that cannot be sent: not the program's fault, so no test may swallow it."""


def _make_proxy(name: str) -> Callable[..., object]:
    def call(*arguments: object, **keywords: object) -> object:
        try:
            question = {"call": name, "arguments": encoded(list(arguments)), "keywords": encoded(keywords)}
        except CannotCross as error:
            raise CannotAsk(f"an argument of {name}: {error}") from error
        _CALLED.append(name)
        answer = ask_outside(question)  # type: ignore[name-defined] # noqa: F821 - serve.py defines it
        if "raised" in answer:
            raise _to_exception(*answer["raised"])
        return decoded(answer["value"])

    return call


def _to_exception(name: str, message: str) -> Exception:
    """The built-in exception of that name, so that tests may expect it; otherwise one whose text names it."""
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        both = type(name, (SolutionRaised, kind), {})
        try:
            return both(message)  # type: ignore[no-any-return]
        except TypeError:
            pass  # some exceptions take other arguments than a message
    return SolutionRaised(f"{name}: {message}")


def _names(tree: ast.Module) -> set[str]:
    """Names that the tests read, without built-ins, which a program must not replace."""
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return {name for name in used if not hasattr(builtins, name)}


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _describe(error: Exception) -> str:
    return traceback.format_exception_only(error)[-1].strip()[:300]
