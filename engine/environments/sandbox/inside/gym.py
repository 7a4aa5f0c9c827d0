"""reasoning-gym's generators and scorers, with the scorers' evaluation of text replaced.

Some scorers pass the model's answer to Python's `eval`, or to sympy's parser, which does the same. In their modules we
bind readers of ours to these names; the rest of the scorer, and so every score, is the library's, but for those that a
guess earns (`repairs`). `judging` refuses evaluation by any scorer that is not listed here.
"""

import ast
import cmath
import contextlib
import io
import json
import re
import sys
import types
import warnings
from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from typing import Any

warnings.filterwarnings("ignore")  # its dependencies warn on import
# One of its dependencies draws pictures, which are not needed here and take a third of the time to import.
for name in ("pyplot", "animation", "collections"):
    sys.modules[f"matplotlib.{name}"] = types.ModuleType(name)
for name in ("matplotlib", "mpl_toolkits", "mpl_toolkits.mplot3d"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["mpl_toolkits.mplot3d"].__dict__["Axes3D"] = object

import reasoning_gym  # noqa: E402
import sympy  # type: ignore[import-untyped]  # noqa: E402
from chance import settled  # type: ignore[import-not-found]  # noqa: E402
from expressions import expression  # type: ignore[import-not-found]  # noqa: E402
from judging import Judging  # type: ignore[import-not-found]  # noqa: E402
from reasoning_gym.factory import DATASETS  # noqa: E402
from repairs import repaired  # type: ignore[import-not-found]  # noqa: E402

EVALUATES = ("string_insertion", "spiral_matrix", "binary_matrix", "n_queens")
"""The answer is a list in Python's notation."""
MEASURES = {"complex_arithmetic": "complex", "coin_flip": "Fraction"}
"""The score is the distance to the expected answer, with this class of numbers; some texts have no such distance."""
COUNTS = ("puzzle24", "countdown")
"""The answer is arithmetic, and the scorer counts the numbers used."""
PARSES = ("simple_integration", "intermediate_integration", "polynomial_multiplication")
DRAWS_ON = ("acre", "gsm_symbolic", "list_functions")
"""Their first question depends on more than its seed: also on the draws that made the dataset."""


_WRITTEN_OUT = re.compile(r"\s*[-+]?(?:\d[\d_]*)?(?:\.\d[\d_]*|\.)?(?:/\d[\d_]*|[eE]-0?\d)?\s*", re.ASCII)
_OWN_TEXTS: set[str] = set()
"""Texts of the question that is being judged."""


def tasks() -> list[str]:
    return sorted(name for name in DATASETS if name != "composite")  # composite is made of other tasks


def question(task: str, params: str, index: int) -> str:
    return str(_made(task, params, index)[1]["question"])


def score(task: str, params: str, index: int, answer: str, cpu_s: float) -> float | None:
    """The score of the task's own scorer, repaired where it pays guesses; None if it is not from 0 to 1. Call it in a
    process of its own."""
    dataset, entry = _made(task, params, index)
    _OWN_TEXTS.update(texts_of(entry))
    judging = Judging(own_texts=_OWN_TEXTS, cpu_s=cpu_s)
    with contextlib.redirect_stdout(io.StringIO()):
        scored = scored_as(task, dataset, answer, entry)
    judging.refuse_if_evaluated()
    return scored if 0 <= scored <= 1 else None


def scored_as(task: str, dataset: Any, answer: str, entry: Any) -> float:
    return float(repaired(task, float(dataset.score_answer(answer, entry)), answer, entry))


def warm_up(task: str, params: str) -> None:
    """Loads all that a task loads on first use, before this process is copied."""
    read_instead_of_evaluating(task)
    with contextlib.suppress(Exception):  # the first question reports a wrong setting
        dataset, entry = _made(task, params, 0)
        for answer in ("0", str(entry["answer"])):
            dataset.score_answer(answer, entry)


def read_instead_of_evaluating(task: str) -> None:
    if task not in DATASETS:  # the first question reports it
        return
    module = vars(sys.modules[DATASETS[task][0].__module__])
    if task in EVALUATES:
        module["eval"] = ast.literal_eval
    elif task in MEASURES:
        name = MEASURES[task]
        module[name] = {"complex": _finite, "Fraction": _written_out}[name]
    elif task in COUNTS:
        module["parse_expr"] = lambda text: expression(text, counts=True)
    elif task in PARSES:
        seen = types.ModuleType("sympy")
        vars(seen).update(vars(sympy), parse_expr=_parsed)
        module["sp" if "sp" in module else "sympy"] = seen


def _parsed(text: str, local_dict: dict[str, object] | None = None) -> object:
    return expression(text, symbols=local_dict, is_own=text in _OWN_TEXTS)


def _finite(*parts: float) -> complex:
    number = complex(*parts)
    if not cmath.isfinite(number):
        raise ValueError(f"a finite number, got {number}")
    return number


def _written_out(text: str) -> Fraction:
    """Each digit of an exponent means ten times the digits, which are compared as text: only small probabilities may
    have an exponent, in Python's notation."""
    if not _WRITTEN_OUT.fullmatch(text) and text not in _OWN_TEXTS:
        raise ValueError(f"expected digits, with a point, a fraction bar or an exponent like e-05, got {text[:20]!r}")
    return Fraction(text)


def texts_of(entry: object) -> Iterator[str]:
    """All texts of a question; some scorers compute the expected answer from them."""
    waiting = [entry]
    while waiting:
        match waiting.pop():
            case str(text):
                yield text
            case dict(fields):
                waiting += fields.values()
            case list(items) | tuple(items):
                waiting += items


def _made(task: str, params: str, index: int) -> tuple[Any, Any]:
    """The dataset, which scores, and its question with this index."""
    if task in DRAWS_ON:
        return _made_anew(task, params, index)
    return _numbered(task, params, index), _entry(task, params, index)


@lru_cache(maxsize=256)
def _entry(task: str, params: str, index: int) -> Any:
    dataset = _numbered(task, params, index)
    with settled(index):
        return dataset[0]


def _numbered(task: str, params: str, index: int) -> Any:
    """Reuses one dataset, as reading its words (17 MB) takes half a second; its seed alone decides the question."""
    dataset = _dataset(task, params)
    dataset.seed = dataset.config.seed = index
    return dataset


@lru_cache(maxsize=4)
def _dataset(task: str, params: str) -> Any:
    return reasoning_gym.create_dataset(task, seed=0, size=1, **json.loads(params))


@lru_cache(maxsize=256)
def _made_anew(task: str, params: str, index: int) -> tuple[Any, Any]:
    with settled(index):
        dataset = reasoning_gym.create_dataset(task, seed=index, size=1, **json.loads(params))
        return dataset, dataset[0]
