"""Runs a data set's tests, statement by statement, and calls the functions under test through the engine.

The program under test is in another sandbox. Only values come from there, never objects or code, so it cannot reach
the tests, their expected answers, or the count of passed tests.

Invariant: `check_tests` fails for faults of the tests alone, before any program starts; `run_tests` fails for none:
whatever ends a statement is a failed test.
"""

import ast
import builtins
import traceback
from collections.abc import Callable, Iterator, Mapping

from values import CannotCross, decoded, encoded  # type: ignore[import-not-found]

Call = Callable[..., object]
Outcome = tuple[ast.stmt, BaseException | None]


class SolutionRaised(Exception):
    """The function under test raised."""


class CannotAsk(BaseException):
    """The tests pass an argument that cannot be sent. No `except Exception` of the tests may swallow it."""


class NoProgram(BaseException):
    """The tests call the program while they are checked without one."""


def check_tests(source: str) -> bool:
    """Raises if the tests fail by themselves. Each statement ends at its first call of the program."""
    tree = ast.parse(source)
    if not any(_is_test(statement) for statement in tree.body):
        raise ValueError("the answer of the data set contains no test")
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    has_called = False
    for statement, error in _outcomes(tree, {name: _make_stub(name) for name in called & _names(tree)}):
        may_fail = has_called or _is_test(statement) or isinstance(error, NameError | NoProgram)
        if isinstance(error, CannotAsk) or not (
            error is None or (may_fail and isinstance(error, Exception | NoProgram))
        ):
            raise error
        has_called |= isinstance(error, NoProgram)
    return True


def run_tests(source: str, callables: list[str]) -> dict[str, object]:
    """Each assertion, and each bare call, at the top level is one test."""
    tree = ast.parse(source)
    num = passed = 0
    failure = ""
    for statement, error in _outcomes(tree, {name: _make_proxy(name) for name in _names(tree) & set(callables)}):
        is_test = _is_test(statement)
        num += is_test or error is not None  # later statements may depend on one that is no test
        passed += is_test and error is None
        if error is not None:
            failure = failure or f"line {statement.lineno}: {_describe(error)}"
    return {"num": num, "passed": passed, "failure": failure}


def _outcomes(tree: ast.Module, functions: Mapping[str, Call]) -> Iterator[Outcome]:
    namespace: dict[str, object] = {"__name__": "tests", **functions}
    for statement in tree.body:
        error = None
        try:
            exec(compile(ast.Module([statement], []), "tests.py", "exec"), namespace)  # noqa: S102 - the tests
        except BaseException as raised:  # noqa: BLE001 - the callers decide whose fault it is
            error = raised
        yield statement, error


def _make_stub(name: str) -> Call:
    def call(*arguments: object, **keywords: object) -> object:
        _encode_call(name, arguments, keywords)
        raise NoProgram

    return call


def _make_proxy(name: str) -> Call:
    def call(*arguments: object, **keywords: object) -> object:
        answer = ask_outside(_encode_call(name, arguments, keywords))  # type: ignore[name-defined] # noqa: F821 - serve.py defines it
        if "raised" in answer:
            raise _to_exception(*answer["raised"])
        return decoded(answer["value"])

    return call


def _encode_call(name: str, arguments: tuple[object, ...], keywords: dict[str, object]) -> dict[str, object]:
    try:
        return {"call": name, "arguments": encoded(list(arguments)), "keywords": encoded(keywords)}
    except CannotCross as error:
        raise CannotAsk(f"an argument of {name}: {error}") from error


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


def _is_test(statement: ast.stmt) -> bool:
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.Assert | ast.Expr) and not is_text


def _describe(error: BaseException) -> str:
    return traceback.format_exception_only(error)[-1].strip()[:300]
