"""Scores of reasoning-gym 0.1.25 that a guess earns, repaired.

    task                    its own scorer                                           paid here
    puzzle24                never reads which numbers were given                     the given numbers and signs only
    game_of_life_halting    compares `bool` of two texts: every text is true         the expected word
    coin_flip               digits in common, by the shorter text: `0` has all       within the scorer's own tolerance
    game_of_life            the share of equal cells, most of which are empty        all cells
    mini_sudoku, sudoku     the share of equal cells                                 all cells
    rectangle_count         nearness to the number, which is small                   the number
    time_intervals          nearness, by a day where most answers are hours          the interval
    polynomial_equations    nearness, which 0 has to many roots                      a score of nine tenths or more
    boxnet                  skips moves that are impossible: one long plan that      possible moves only
                            sweeps the grid solves all

Invariant: a repair lowers a score to what the library gives for wrong answers, never that of a right answer.
"""

import json
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from reasoning_gym.games.boxnet import action_from_response

CONSOLATION = 0.01
NEAR = 0.9
TOLERANCE = 1e-4
_NUMBER = re.compile(r"\b\d+\b")
_SIGN = re.compile(r"\*\*|//|[^\d\s()]")
_DIGITS = "123456789"

Entry = Mapping[str, Any]
IsRight = Callable[[float, str, Entry], bool]


def repaired(task: str, scored: float, answer: str, entry: Entry) -> float:
    is_right = REPAIRS.get(task)
    is_kept = is_right is None or scored <= CONSOLATION or is_right(scored, answer, entry)
    return scored if is_kept else CONSOLATION


def _is_whole(scored: float, answer: str, entry: Entry) -> bool:
    return scored == 1.0


def _is_the_probability(scored: float, answer: str, entry: Entry) -> bool:
    """What scores 1 is a number, which is compared as the scorer compares it first."""
    return scored == 1.0 and abs(Fraction(answer.replace(",", "")) - Fraction(entry["answer"])) <= TOLERANCE


def _is_near(scored: float, answer: str, entry: Entry) -> bool:
    return scored >= NEAR


def _is_the_word(scored: float, answer: str, entry: Entry) -> bool:
    return answer.strip().lower() == str(entry["answer"]).lower()


def _uses_what_was_given(scored: float, answer: str, entry: Entry) -> bool:
    used = sorted(int(number) for number in _NUMBER.findall(answer))
    return used == sorted(entry["metadata"]["numbers"]) and set("+-*/").issuperset(_SIGN.findall(answer))


def _has_all_cells(scored: float, answer: str, entry: Entry) -> bool:
    """Reads rows as the scorer does, which accepts lines and frames around them."""
    solution: list[list[int]] = entry["metadata"]["solution"]
    rows = [[int(letter) for letter in line if letter in _DIGITS] for line in answer.split("\n")]
    return [row for row in rows if len(row) == len(solution[0])][: len(solution)] == solution


def _moves_are_possible(scored: float, answer: str, entry: Entry) -> bool:
    """Each move changes the state, as the library itself plays it."""
    state = entry["metadata"]["initial_state"]
    for step in json.loads(answer):
        for agent, move in step.items():
            before, state = state, action_from_response(state, [{agent: move}])
            if state == before:
                return False
    return True


REPAIRS: dict[str, IsRight] = {
    "boxnet": _moves_are_possible,
    "coin_flip": _is_the_probability,
    "game_of_life": _is_whole,
    "game_of_life_halting": _is_the_word,
    "mini_sudoku": _has_all_cells,
    "polynomial_equations": _is_near,
    "puzzle24": _uses_what_was_given,
    "rectangle_count": _is_whole,
    "sudoku": _has_all_cells,
    "time_intervals": _is_whole,
}
