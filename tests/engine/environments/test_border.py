"""Invalid output of a customer's code ends its sample, never a part of the job, and is blamed on the customer."""

import json
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

import pytest

from engine.environments.border import MAX_DEPTH, MAX_LETTERS, MAX_REWARD, shown, sound, sound_prompt
from engine.environments.custom import Custom
from engine.environments.gym import ReasoningGym
from engine.environments.port import GraderError, Observation, Prompt, Verdict
from engine.environments.questions.lines import MAX_LINE_BYTES
from engine.environments.questions.question import Columns, question_of
from engine.environments.registry import read_questions
from engine.live.data.frames import HEAD, entry_of, frame
from engine.live.environment.turn_threads import TurnThreads
from engine.live.environment.turns import Answer
from engine.live.facts.from_reports import trajectories_sampled
from engine.pipeline.effects import StartSequences
from engine.pipeline.journal import TrajectoryTaken
from engine.pipeline.messages.addresses import Address
from engine.pipeline.messages.to_driver import ReadTrajectory
from engine.pipeline.records import GroupKey, GroupTask, Trajectory
from engine.spec.job import EnvironmentSpec
from tests.engine.environments.sandboxed import sandbox
from tests.engine.live.rollout.test_body import Replica

__all__ = ["sandbox"]
pytestmark = pytest.mark.usefixtures("one_thread")

# Every return value, exception and side effect follows from the prompt's number and the length of the turns.
HOSTILE: Final = r"""
import os, random, sys

HALF = "\ud800"
TEXTS = ["", "3 + 8 =", HALF, f"3 {HALF} 8", "\udcff" * 50, "\x00", "\x1b[2J", "\ufeff\u202e", "3 " * 3000,
         "9" * 9_000_000, "\U0010ffff", "e\u0301" * 500]
NUMBERS = [0, 1, -1, 0.5, 1e308, -1e308, float("nan"), float("inf"), float("-inf"), 10**18, 10**400, 10**4000, -(10**9),
           10**9 + 1, True, None]


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


def any_of(rng, depth=0):
    kind = rng.randrange(9 if depth < 3 else 3)
    if kind == 0:
        return rng.choice(TEXTS)
    if kind == 1:
        return rng.choice(NUMBERS)
    if kind == 2:
        return rng.choice([b"bytes", {1, 2}, object(), any_of, 1j, nested(30), nested(90), nested(5_000)])
    if kind in (3, 4):
        return [any_of(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 5:
        return {rng.choice([*TEXTS[:8], 7, None, "role", "content"]): any_of(rng, depth + 1) for _ in range(3)}
    if kind == 6:
        return {"role": rng.choice(["user", "assistant", "king", HALF]), "content": any_of(rng, depth + 1)}
    if kind == 7:
        return [{"role": "user", "content": rng.choice(TEXTS)}]
    return {str(number): number for number in range(20_000)}


def misbehave(rng):
    match rng.randrange(24):
        case 0:
            raise ValueError(rng.choice(TEXTS))
        case 1:
            raise SystemExit(HALF)
        case 2:
            os._exit(3)
        case 3:
            print("x" * 100_000)
        case 4:
            for fd in range(3, 64):
                try:
                    os.write(fd, rng.choice([b"\xff\xff\xff\xff", b"\x00\x00\x00\x02[]", b"\x00\x00\x00\x04\"\xff\"x"]))
                except OSError:
                    pass
        case 5:
            sys.setrecursionlimit(10**9)
            raise type(HALF.encode("utf-8", "surrogatepass").decode("utf-8", "ignore") or "E", (Exception,), {})(HALF)


def prompt(split, ordinal, seed, params):
    rng = random.Random(f"{split}/{ordinal}")
    if ordinal < 8:
        return {"text": f"{split} {ordinal}: 3 + 8 ="}
    if rng.random() < 0.7:
        return {"text": rng.choice(["3 + 8 =", HALF + " 3"]), "facts": {"n": rng.choice([1, HALF])}}
    misbehave(rng)
    return rng.choice([
        lambda: any_of(rng), lambda: {"text": any_of(rng)}, lambda: {"messages": any_of(rng), "tools": any_of(rng)},
        lambda: {"text": "3 + 8 =", "facts": any_of(rng)},
    ])()


def respond(prompt, turns):
    rng = random.Random(f"{prompt['ordinal']}/{len(turns)}/{len(turns[-1])}")
    misbehave(rng)
    if rng.random() < 0.3:
        return {"observation": rng.choice(TEXTS), "role": rng.choice(["user", "tool"])}
    return rng.choice([
        lambda: any_of(rng),
        lambda: {"reward": any_of(rng), "parts": any_of(rng), "remark": any_of(rng)},
        lambda: {"reward": rng.choice(NUMBERS[:10])},
        lambda: {"reward": 1.0, "remark": any_of(rng), "trusted": any_of(rng)},
        lambda: {"reward": 1.0, "parts": {HALF: 0.5, "b": any_of(rng)}},
        lambda: {"observation": any_of(rng), "role": any_of(rng)},
    ])()
"""


class HostileReplica(Replica):
    """A replica's body with the real engine; an environment worker's threads run the customer's code."""

    def __init__(self, environment: Custom) -> None:
        super().__init__("tool_sums")
        self.answers: SimpleQueue[Answer] = SimpleQueue()
        self.threads = TurnThreads(environment, timeout_s=20.0, answer=self._put)

    def _put(self, to: Address, answer: Answer) -> None:
        self.answers.put(answer)

    def answer(self) -> None:
        num_turns = len(self.asks)
        while self.asks:
            self.threads.ask(self.asks.popleft())
        for _ in range(num_turns):
            self.receive(self.body.on_answers([self.answers.get(timeout=60)]))


def store_and_report(trajectory: Trajectory) -> None:
    """Writes it to data's log and reports it as facts."""
    written = frame(TrajectoryTaken(trajectory=trajectory))
    assert isinstance(entry_of(written[HEAD.size :], resolve=lambda lies: trajectory), TrajectoryTaken)
    read = ReadTrajectory(trajectory=trajectory, staleness=0, advantage=0.0)
    for fact in trajectories_sampled(1, [read]):
        fact.model_dump_json().encode()


def run_hostile(num_prompts: int) -> dict[str, int]:
    """The number of judged samples, and of failures by blame."""
    replica = HostileReplica(Custom(seed=0, code=HOSTILE, params={}, timeout_s=10.0))
    for ordinal in range(8, 8 + num_prompts):
        replica.body.perform(StartSequences(tasks=(GroupTask(key=GroupKey(ordinal=ordinal), samples=(0, 1), lease=1),)))
        replica.finish()
    assert len(replica.ended) == 2 * num_prompts, "every sample comes back once"
    counts: dict[str, int] = {}
    for trajectory in replica.ended.values():
        store_and_report(trajectory)
        failure = trajectory.failure
        blame = "judged" if failure is None else failure.blame
        counts[blame] = counts.get(blame, 0) + 1
        if failure is None:
            assert abs(trajectory.reward) <= MAX_REWARD
        else:
            assert f"prompt train/{trajectory.key.group.ordinal}" in failure.reason
            failure.reason.encode()
    return counts


@pytest.mark.long
@pytest.mark.sandbox
def test_hostile_environment_kills_no_rollout_and_is_blamed(sandbox: None) -> None:
    counts = run_hostile(60)
    assert set(counts) == {"judged", "user_code", "reward"} and min(counts.values()) >= 5, counts


@pytest.mark.sandbox
@pytest.mark.soak
def test_ten_thousand_hostile_prompts_kill_no_rollout(sandbox: None) -> None:
    assert set(run_hostile(10_000)) == {"judged", "user_code", "reward"}


# ── the border ────────────────────────────────────────────────────────────────────────────────────────────────────────


def prompt(**fields: Any) -> Prompt:
    return Prompt(**{"split": "train", "ordinal": 3, "text": "?", "facts": {}, **fields})


def verdict(**fields: Any) -> Verdict:
    return Verdict(**{"reward": 1.0, "parts": {}, "trusted": True, "remark": "", **fields})


def test_half_surrogate_pair_becomes_replacement_character() -> None:
    assert sound(Observation(text="a\ud800b")) == Observation(text="a\ufffdb")
    assert sound(verdict(remark="\udfff")).remark == "\ufffd"  # type: ignore[union-attr]
    made = sound_prompt(
        prompt(text="\ud83d", facts={"\ud800": "\ud800"}, messages=({"role": "user", "content": "\ud800"},))
    )
    assert (made.text, made.facts, made.messages[0]["content"]) == ("\ufffd", {"\ufffd": "\ufffd"}, "\ufffd")
    for whole in ("😀", "e\u0301", "\x00"):
        assert sound(Observation(text=whole)) == Observation(text=whole)


@pytest.mark.parametrize(
    "reward", [float("nan"), float("inf"), -float("inf"), 1e308, 10**4000, MAX_REWARD * 1.01, True, "1"], ids=range(8)
)
def test_reward_out_of_bounds_is_refused(reward: Any) -> None:
    with pytest.raises(GraderError, match=r"reward: a finite number from -1e\+09 to 1e\+09, got") as caught:
        sound(verdict(reward=reward))
    assert caught.value.blame == "reward" and not caught.value.retryable and len(str(caught.value)) < 500
    assert sound(verdict(reward=-MAX_REWARD)).reward == -MAX_REWARD  # type: ignore[union-attr]


def deep(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "x" * (MAX_LETTERS + 1)},
        {"facts": {"n": 1 << 65}},
        {"messages": ({"role": "user", "content": deep(MAX_DEPTH + 1)},)},
        {"messages": ({"role": "user", "n": float("nan")},)},
        {"messages": ({"role": "user", "n": 10**400},)},
        {"messages": ({"role": "user", 7: "x"},)},
        {"tools": ({"all": list(range(20_000))},)},
        {"tools": ({"it": object()},)},
        {"facts": {str(at): "x" * (2 << 20) for at in range(7)}},
        {"text": "x" * MAX_LETTERS, "messages": [{"role": "user", "content": "é" * MAX_LETTERS}], "facts": {"a": "x"}},
        {"facts": dict.fromkeys(map(str, range(20_000)), 0)},
    ],
    ids=range(11),
)
def test_prompt_out_of_bounds_is_refused_with_the_rule(fields: dict[str, Any]) -> None:
    with pytest.raises(GraderError, match=r"^(prompt|facts: '\w+'): .*, got ") as caught:
        sound_prompt(prompt(**fields))
    assert caught.value.blame == "user_code" and not caught.value.retryable and len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "value", ["\x1b[31m\ud800", deep(50_000), 10**5000, "x" * 10**6, {"a": {"b": "\u202e"}}], ids=range(5)
)
def test_value_in_an_error_is_short_and_escaped(value: object) -> None:
    assert (shown(value).removesuffix("…")).isascii() and shown(value).isprintable()
    assert len(shown(value)) <= 201


@pytest.mark.parametrize(
    "row", [{"prompt": [{"role": "user", "content": "é"}]}, {"more": ["é"]}], ids=["prompt", "fact"]
)
def test_longest_row_of_a_data_set_is_a_prompt(row: dict[str, Any]) -> None:
    room = MAX_LINE_BYTES - len(json.dumps({"prompt": "?", "answer": "1"} | row, ensure_ascii=False).encode())
    longest = json.dumps({"prompt": "?", "answer": "1"} | row, ensure_ascii=False).replace("é", "é" * (room // 2))
    assert MAX_LINE_BYTES - 8 < len(longest.encode()) <= MAX_LINE_BYTES
    made = question_of(json.loads(longest), Columns(all_to_judge=True)).as_prompt("train", 0)
    assert sound_prompt(made) == made


def test_rows_of_a_data_set_are_encodable_prompts(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(
            json.dumps({"prompt": f"{at} \ud800", "answer": "1", "split": ("train", "test")[at % 2]}) + "\n"
            for at in range(40)
        )
    )
    prompts: list[Prompt] = []
    params: dict[str, str | int | float | bool] = {"data": str(path), "held_out_column": "split"}
    read_questions(EnvironmentSpec(name="jsonl", params=params), data_folder=None, accept=prompts.append)
    assert len(prompts) == 40 and all(each.text.endswith("\ufffd") for each in prompts)


# ── the platform's own faults ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def broken_sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin:/usr/sbin:/sbin")
    tmp_path.chmod(0o755)


def test_sandbox_that_does_not_start_is_platforms_fault(broken_sandbox: None) -> None:
    for make in (
        lambda: Custom(seed=0, code="def prompt(*_): return {'text': 'x'}", params={}, timeout_s=5.0),
        lambda: ReasoningGym(seed=0, task="chain_sum", params={}, timeout_s=5.0),
    ):
        with pytest.raises(GraderError, match=r"did not start|namespace") as caught:
            make()
        assert caught.value.blame == "infrastructure"
