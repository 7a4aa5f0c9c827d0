"""No program judged by tests is left without a verdict: what it sends, and what its values do to the tests, counts
against it. Faults of the tests are found before a program starts."""

import pytest

from engine.environments.judging.unit_tests import UnitTests
from engine.environments.port import GraderError
from tests.engine.environments.sandboxed import sandbox

__all__ = ["sandbox"]
pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("sandbox")]

ADD = "def add(a, b): return a + b\n"
SENDS = """
import frames, json, types
encode = json.dumps
frames.json = types.SimpleNamespace(dumps=lambda m: encode(m, ensure_ascii=False), loads=json.loads)
"""
"""Sends texts as they are: `é` in two bytes, which the engine encodes in six."""
LOADS = "import __main__\n__main__.load_solution = lambda: "
ODD_NAMES = (
    "globals()[('add', 1)] = print\nfor name in [*globals()]:\n    isinstance(name, str) and globals().pop(name)",
    f"{LOADS}{{'names': [['add']]}}",
    f"{LOADS}{{'names': [{{}}, None, 3]}}",
    f"{LOADS}{{'names': ['add'], 'raised': ['x']}}",
    f"{LOADS}{{'names': {{'add': 1}}}}",
    f"{LOADS}{{'raised': None}}",
    f"{LOADS}['add']",
    f"{SENDS}{LOADS}{{'names': ['é' * 100] * 30_000}}",
)
ODD_VALUES = (
    f"{SENDS}def add(a, b): return 'é' * 3_000_000",
    f"{SENDS}def add(a, b): raise ValueError('é' * 300)",
    f"{SENDS}import __main__\n__main__.call_solution = lambda *a: {{'raised': ['é' * 3_000_000, 'x']}}\n{ADD}",
    f"import __main__\n__main__.call_solution = lambda *a: {{'raised': 'KeyError'}}\n{ADD}",
    f"import __main__\n__main__.call_solution = lambda *a: {{'raised': [3, {{}}]}}\n{ADD}",
    f"import __main__\n__main__.call_solution = lambda *a: {{'value': {{'tuple': 3}}}}\n{ADD}",
    f"import __main__\n__main__.call_solution = lambda *a: {{'value': {{'none': 3, 'int': '3'}}}}\n{ADD}",
    f"import __main__\n__main__.call_solution = lambda *a: None\n{ADD}",
    *(
        f"import frames\nframes.packed.__globals__['json'] = type('J', (), {{'loads': frames.json.loads, 'dumps': "
        f"lambda m: '{{\"nonce\": \"' + m['nonce'] + '\", \"value\": {{\"value\": ' + '[' * {depth} + ']' * {depth} "
        f"+ '}}}}' if 'nonce' in m else '0'}})\n{ADD}"
        for depth in (100, 300, 900, 940, 960, 980, 990, 5_000)
    ),
)


def rewards(tests: str, *programs: str, timeout_s: float = 5) -> dict[str, float]:
    judged = UnitTests(timeout_s=timeout_s)
    return {program: judged.verdict(tests, program).reward for program in programs}


@pytest.mark.long
@pytest.mark.parametrize("programs", [ODD_NAMES, ODD_VALUES], ids=["names", "values"])
def test_odd_messages_of_a_program_are_failed_tests(programs: tuple[str, ...]) -> None:
    assert rewards("assert add(1, 2) == 3", *programs) == dict.fromkeys(programs, 0.0)


@pytest.mark.long
def test_value_that_fits_only_once_fails_the_test() -> None:
    """The test passes the value on, and the second message holds a few bytes more than the first."""
    programs = [f"def add(a, b): return 'x' * ((8 << 20) - {spare})" for spare in (100, 120, 140, 160, 200)]
    assert rewards("assert add(add(1, 2), 2) == 3", *programs) == dict.fromkeys(programs, 0.0)


@pytest.mark.parametrize(
    ("tests", "returns"),
    [
        ("print(add(1, 2))\nassert add(1, 2) == 3", "'x' * 4_000_000"),
        ("import sys\nsys.stderr.write(add(1, 2) * 4)", "'x' * 4_000_000"),
        ("import sys\nsys.exit(add(1, 2) != 3)", "0"),
        ("import os\nos._exit(add(1, 2) != 3)", "0"),
        ("if add(1, 2) != 3: raise KeyboardInterrupt\nassert add(1, 2) == 3", "0"),
        ("x = [0] * add(1, 2)\nassert add(1, 2) == 3", "1 << 40"),
        ("f = open('/tmp/x', 'w')\nf.write(add(1, 2) * 20)\nf.flush()\nassert add(1, 2) == 3", "'x' * 4_000_000"),
        ("import ctypes\nctypes.string_at(add(1, 2))", "0"),
    ],
)
def test_value_that_breaks_the_tests_fails_them(tests: str, returns: str) -> None:
    program = f"def add(a, b): return {returns}"
    assert rewards(tests, program) == {program: 0.0}


def test_tests_that_sleep_for_a_programs_value_fail() -> None:
    program = "def add(a, b): return 600"
    tests = "import time\ntime.sleep(add(1, 2))\nassert add(1, 2) == 3"
    assert rewards(tests, program, timeout_s=0.5) == {program: 0.0}


@pytest.mark.parametrize(
    "tests",
    ["total = Sum.of(1, 2)\nassert total == 3", "ten = 10\nx = ten + Sum\nassert x", "assert Sum(Sum.of, 1)"],
)
def test_name_of_another_kind_is_the_programs_fault(tests: str) -> None:
    """The tests fail before they call the program, and only with this program."""
    program = "class Sum: pass"
    assert rewards(tests, program) == {program: 0.0}


@pytest.mark.parametrize(
    "tests",
    [
        "assert add(1, 2",
        "import nothing_of_that_name\nassert add(1, 2) == 3",
        "for a in (1, 2): assert add(a, 0) == a",
        "assert add(lambda: 1, 2)",
        "if add(1, 2): pass\nassert add(lambda: 1, 2)",
        "raise SystemExit(0)\nassert add(1, 2) == 3",
        pytest.param("while True: pass\nassert add(1, 2) == 3", marks=pytest.mark.long),
        "",
    ],
)
def test_broken_tests_are_an_error_with_any_program(tests: str) -> None:
    for program in (ADD, "", "import os; os._exit(0)", ODD_NAMES[1]):
        with pytest.raises(GraderError) as caught:
            UnitTests(timeout_s=0.5).verdict(tests, program)
        assert caught.value.blame == "reward"


def test_program_with_half_a_character_has_failed() -> None:
    assert rewards("assert add(1, 2) == 3", f"{ADD}x = '\ud800'") == {f"{ADD}x = '\ud800'": 1.0}
    assert rewards("assert add(1, 2) == 3", "\ud800") == {"\ud800": 0.0}
