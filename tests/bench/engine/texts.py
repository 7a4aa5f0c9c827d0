"""What the texts of a turn cost a replica: made by its loop, or in the bounded process of template and tokenizer.

A conversation renders its prompt once for a group, and decodes and renders once for each turn. The loop waits for texts
of its own process. It continues while another process makes them, and then loses at most the CPU time of the calls in
the replica's process. The shares are of the time that the replica needs for the turn's tokens.
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

ROUNDS, TURNS = 20, 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 1_024, 8_192], help="of a turn (256 1024 8192)")
    parser.add_argument("--rate", type=float, default=20_000.0, help="tokens a second of the whole replica (20000)")


def measure(arguments: argparse.Namespace) -> Report:
    with tempfile.TemporaryDirectory() as place:
        folder = save_qwen3(Path(place))
        own = ModelTexts(Tokenizer.from_folder(folder), ChatTemplate.of_folder(folder, {}))
        rows = [_row(own, open_texts(folder, by_template=True), num, arguments.rate) for num in arguments.tokens]
    remarks = ["of a turn, from the fastest of 20 rounds: decoding it, then rendering and encoding an answer"]
    return Report(bench="texts", rows=rows, remarks=remarks)


def _row(own: ModelTexts, bounded: ModelTexts, num_tokens: int, rate: float) -> Row:
    in_process, in_bounded = _turn(own, num_tokens), _turn(bounded, num_tokens)
    in_process_s, bounded_s = _fastest_s(in_process, time.process_time), _fastest_s(in_bounded, time.process_time)
    return {
        "tokens": num_tokens,
        "in_process_us": rounded(in_process_s * 1e6),
        "in_process_share": rounded(in_process_s * rate / num_tokens),
        "bounded_us": rounded(bounded_s * 1e6),
        "bounded_share": rounded(bounded_s * rate / num_tokens),
        "bounded_takes_us": rounded(_fastest_s(in_bounded, time.monotonic) * 1e6),
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


def _fastest_s(act: Callable[[], object], clock: Callable[[], float]) -> float:
    times_s = []
    for _ in range(ROUNDS):
        began = clock()
        for _ in range(TURNS):
            act()
        times_s.append((clock() - began) / TURNS)
    return min(times_s)
