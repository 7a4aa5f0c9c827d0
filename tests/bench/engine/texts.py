"""What the bounded process of a model's template and tokenizer costs a replica: its calls wait for each.

A conversation renders its prompt once for a group, and decodes and renders once for each turn. The share is of the time
that the replica needs for the tokens of the turn.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from engine.environments.port import Observation, Prompt, Turn
from engine.live.rollout.wording import Wording
from engine.live.texts.model_texts import ModelTexts, open_texts
from engine.models.chat import ChatTemplate
from engine.models.tokenizer import Tokenizer
from engine.scorecard.tables import Row, rounded
from tests.bench.engine.report import Report
from tests.engine.chat_rules import save_qwen3

REPEATS = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 1_024, 8_192], help="of a turn (256 1024 8192)")
    parser.add_argument("--rate", type=float, default=2_500.0, help="tokens a second of the whole replica (2500)")


def measure(arguments: argparse.Namespace) -> Report:
    with tempfile.TemporaryDirectory() as place:
        folder = save_qwen3(Path(place))
        own = ModelTexts(Tokenizer.from_folder(folder), ChatTemplate.of_folder(folder, {}))
        rows = [_row(own, open_texts(folder, by_template=True), num, arguments.rate) for num in arguments.tokens]
    remarks = ["fastest of many turns, as waits for a core differ: decoding, then rendering and encoding an answer"]
    return Report(bench="texts", rows=rows, remarks=remarks)


def _row(own: ModelTexts, bounded: ModelTexts, num_tokens: int, rate: float) -> Row:
    own_s, bounded_s = (_fastest_s(_turn(texts, num_tokens)) for texts in (own, bounded))
    return {
        "tokens": num_tokens,
        "in_process_us": rounded(own_s * 1e6),
        "bounded_us": rounded(bounded_s * 1e6),
        "share_of_replica": rounded((bounded_s - own_s) * rate / num_tokens),
    }


def _turn(texts: ModelTexts, num_tokens: int) -> Callable[[], object]:
    wording = Wording(texts.tokenizer, texts.template)
    prompt = Prompt(split="train", ordinal=0, text="What is 6 times 7?", facts={})
    opening = wording.render_prompt(prompt)
    ids = (texts.tokenizer.encode("the answer is " * num_tokens, goes_on=True) * num_tokens)[:num_tokens]
    observed = [Observation(text="42", role="tool")]

    def turn() -> object:
        decoded = wording.decode(ids)
        return wording.render_observation(prompt, opening.text, [Turn(text=decoded.turn.text)], observed)

    return turn


def _fastest_s(act: Callable[[], object]) -> float:
    times_s = []
    for _ in range(REPEATS):
        began = time.monotonic()
        act()
        times_s.append(time.monotonic() - began)
    return min(times_s)
