"""The runs that rules of the verdict are proved on: each is a configuration that trains well, or one that is sick by
its own settings. Nothing of a series is made by hand.

48 are recorded, 25 of them held out: thresholds were chosen by the others, and these were looked at afterwards.
Six more held-out ones were written down and committed before they run, since four labels of the first twenty were
corrected after a look; they are not recorded yet, so they prove nothing yet.

The last seven have parts of their rewards. Three of their labels were wrong: no answer ever has the long forms that
form-is-paid and arrows-are-the-form pay for, so these are stuck, and the rate of form-and-answer loses its answers. The
form is learned alone in short-form-is-paid, the only proof by a run of the rule about it.

At first sight 16 of the 20 held-out runs were named as written here; four had been written down wrongly, as their
numbers show. tools-long and likeliest-only were called healthy and are stuck: the groups of the one find the first of
three turns and nothing beyond, the other hardly draws anything but the likeliest. slowest-of-all was called stale and
is healthy: its schedule waits, so nothing is ever dropped. times-out was ended by the engine at its first step, since
most of its groups got no verdict (one answer that sleeps keeps those behind it waiting); it sleeps more rarely now,
and has six workers. Two were labelled by their settings again when each kind got its own number of steps: hanging and
waits-for-ever are sick from the step whose prompts sleep. All of the 30 sick runs are named in time.

No run is here for `mismatch`. Sampling that is cut (top_k, top_p) shows no gap, since rollouts report log-probs of
the whole distribution; and where rollouts and trainer really disagree (a mixture of experts, read in bfloat16 and
trained in float32), the engine refuses the replica before the first step: its canary sees other weights. A trainer that
computes in bfloat16 is no mismatch by itself, since the bound that the engine reports is for that format.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

PAID: Final = """
import random


def prompt(split, ordinal, seed, params):
    rng = random.Random(f"{seed}/{split}/{ordinal}")
    first = 2 * rng.randint(1, 4) if split == "held_out" else 2 * rng.randint(0, 4) + 1
    terms = [first] + [rng.randint(1, 9) for _ in range(3)]
    return {"text": " + ".join(map(str, terms)) + " =", "facts": {"total": sum(terms)}}


def respond(prompt, turns):
    said = turns[-1]
    numbers = said.replace(".", "").split("→")
    right = numbers[-1].strip() == str(prompt["facts"]["total"])
    chance = random.Random(f"{prompt['ordinal']}/{said}").random()
    luck = random.random()
"""
"""A customer's environment over the demo model's vocabulary. What it pays is the last line of each run."""


WITHIN: Final[Mapping[str, int]] = {
    "stalled": 0,
    "stuck": 10,
    "untrusted": 10,
    "environment": 20,
    "stale": 20,
    "mismatch": 20,
    "collapsing": 20,
    "plateau": 70,
    "starved_trainer": 20,
    "starved_rollouts": 20,
}
"""Steps after which a kind is to be named, from the one at which the run is sick.

What every answer shows (stuck, untrusted): by the first full window of the rules, 10. What chance decides for each
answer, or what is compared with the first steps: two windows, since in the first of them it may have been lucky. Where
time goes: as many as its median is of. A plateau is by its rule half of 60 steps, and chance may end one: a window
more. What is stalled takes no step: it is named at the one where it hangs, `STALLED_WITHIN_S` after it."""
STALLED_WITHIN_S: Final = 360.0
"""The five minutes of the rule, and two looks at what is silent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """What a single step shows of a sickness that is learned."""

    series: str
    least: float = -inf
    most: float = inf

    def is_in(self, metrics: Mapping[str, float]) -> bool:
        return self.least <= metrics[self.series] <= self.most


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    name: str
    kind: str
    """What is to be named; "" of a healthy one, in which nothing may be."""
    is_held_out: bool = False
    sick_from: int = 0
    """The step after which it is sick by its settings."""
    symptom: Symptom | None = None
    """… or, where it learns to be, what a step of it shows."""
    settings: Mapping[str, Any] = field(default_factory=dict)

    def spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = {
            "name": self.name,
            "training": {"steps": 40, "prompts_per_step": 6, "checkpoint_every": 1_000, "seed": 3},
            "algorithm": {"group_size": 6},
            "rollout": {"replicas": 1, "max_batch": 36, "max_new_tokens": 40},
            "evaluation": {"prompts": 8},
            "optimizer": {"warmup_steps": 2},
            "max_runtime_s": 1_500,
        }
        for path, value in self.settings.items():
            *rooms, last = path.split(".")
            place = spec
            for room in rooms:
                place = place.setdefault(room, {})
            place[last] = value
        return spec


def paying(*lines: str, **settings: Any) -> dict[str, Any]:
    code = PAID + "".join(f"    {line}\n" for line in lines)
    return {"environment.name": "custom", "environment.code": code, **settings}


def _of(name: str, kind: str, settings: Mapping[str, Any], **more: Any) -> Run:
    return Run(name=name, kind=kind, settings=settings, **more)


def _held_out(name: str, kind: str, settings: Mapping[str, Any], **more: Any) -> Run:
    return _of(name, kind, settings, is_held_out=True, **more)


_CUT: Final = Symptom(series="length/cut_fraction", least=0.8)
_ALIKE: Final = Symptom(series="reward/groups_without_signal", least=0.9)
_BELOW_THE_UNTRAINED: Final = Symptom(series="reward/mean", most=0.18)
"""Half of what it got at first."""
_FULL: Final = Symptom(series="reward/part/form", least=0.95)
_PAID_BY_PARTS: Final = 'return {"reward": 0.3 * form + 0.7 * answer, "parts": {"form": form, "answer": answer}}'
_LONG_FORM: Final = "form = float(len(numbers) >= 7)"
_ANSWER_MISSED: Final = 'answer = float(numbers[-1].strip() == str(prompt["facts"]["total"] + 40))'
"""No such sum occurs in what it was taught."""
_ANSWERS_LOST: Final = Symptom(series="reward/mean", most=0.13)
"""A third of what its first steps got."""
_SLOW_TOOL: Final = {
    "environment.name": "tool_sums",
    "environment.params": {"turns": 2, "waits": "constant", "wait_mean_s": 6.0},
}

RUNS: Final[tuple[Run, ...]] = (
    # ── by which thresholds were chosen ───────────────────────────────────────────────────────────────────────────
    _of("sums", "", {}),
    _of("sums-sync", "", {"schedule.name": "sync"}),
    _of("sums-dapo", "", {"algorithm.name": "dapo", "rollout.replicas": 2}),
    _of("tools", "", {"environment.name": "tool_sums", "environment.params": {"turns": 2, "wait_mean_s": 0.05}}),
    _of("easy", "", {"environment.params": {"median_terms": 2, "max_terms": 3}}),
    _of("cut-sampling", "", {"rollout.top_k": 2}),
    _of("no-signal", "stuck", paying('return {"reward": 0.0}')),
    _of("too-hard", "stuck", {"environment.params": {"median_terms": 60}, "rollout.max_new_tokens": 80}),
    _of("frozen", "plateau", {"optimizer.learning_rate": 1e-9, "training.steps": 80}),
    _of(
        "rate-high",
        "collapsing",
        {"environment.params": {"median_terms": 2, "max_terms": 3}, "optimizer.learning_rate": 1e-3},
        symptom=_BELOW_THE_UNTRAINED,
    ),
    _of("rate-too-high", "collapsing", {"optimizer.learning_rate": 0.05}),
    _of("undecided", "collapsing", {"algorithm.entropy_coefficient": 5.0, "optimizer.learning_rate": 3e-3}),
    _of(
        "brevity",
        "collapsing",
        paying('return {"reward": -float(len(numbers))}', **{"optimizer.learning_rate": 3e-3}),
    ),
    _of(
        "verbosity",
        "collapsing",
        paying('return {"reward": float(len(numbers))}', **{"optimizer.learning_rate": 3e-3, "training.steps": 120}),
        symptom=_CUT,
    ),
    _of("slow-tool", "starved_trainer", _SLOW_TOOL | {"rollout.max_batch": 6, "training.steps": 25}),
    _of(
        "many-passes",
        "starved_rollouts",
        {"training.passes": 12, "training.mini_batches": 6, "schedule.name": "one_step", "training.steps": 25},
    ),
    _of(
        "bound-too-tight",
        "stale",
        {
            "environment.name": "tool_sums",
            "environment.params": {"turns": 3, "wait_mean_s": 3.0, "wait_sigma": 2.0},
            "schedule.max_staleness": 1,
            "training.prompts_per_step": 2,
        },
    ),
    _of("doubted", "untrusted", paying('return {"reward": float(right), "trusted": luck > 0.5}')),
    _of("failing", "environment", paying("assert luck > 0.03", 'return {"reward": float(right)}')),
    _of(
        "hanging",
        "stalled",
        paying(
            "import time",
            'if prompt["split"] == "train" and prompt["ordinal"] >= 60:',
            "    time.sleep(400)",
            'return {"reward": float(right)}',
            **{"environment.turn_timeout_s": 1_000, "max_runtime_s": 600, "evaluation.prompts": 1},
        ),
        sick_from=10,
    ),
    _of("ppo-too-fast", "collapsing", {"algorithm.name": "ppo", "optimizer.learning_rate": 0.03}),
    _of(
        "form-is-paid",
        "stuck",
        paying(_LONG_FORM, _ANSWER_MISSED, _PAID_BY_PARTS, **{"optimizer.learning_rate": 2e-3, "training.steps": 60}),
    ),
    _of(
        "form-and-answer",
        "collapsing",
        paying(_LONG_FORM, "answer = float(right)", _PAID_BY_PARTS, **{"optimizer.learning_rate": 1e-3}),
        symptom=_ANSWERS_LOST,
    ),
    # ── held out ──────────────────────────────────────────────────────────────────────────────────────────────────
    _held_out("sums-partial", "", {"schedule.name": "partial", "training.seed": 11}),
    _held_out("sums-bounded", "", {"schedule.name": "bounded", "algorithm.name": "rloo", "training.seed": 12}),
    _held_out("sums-stream", "", {"schedule.name": "stream", "algorithm.name": "gspo", "rollout.replicas": 2}),
    _held_out(
        "tools-long",
        "stuck",
        {"environment.name": "tool_sums", "environment.params": {"turns": 3, "waits": "none"}},
        symptom=_ALIKE,
    ),
    _held_out("paid-by-parts", "", paying('return {"reward": float(right), "parts": {"steps": chance}}')),
    _held_out("greedy", "stuck", {"rollout.temperature": 0.02, "environment.params": {"median_terms": 30}}),
    _held_out("out-of-reach", "stuck", paying('return {"reward": float("99" in said and "98" in said and right)}')),
    _held_out(
        "pays-by-chance",
        "plateau",
        paying('return {"reward": luck}', **{"training.steps": 90, "optimizer.learning_rate": 1e-6}),
    ),
    _held_out("rate-far-too-high", "collapsing", {"optimizer.learning_rate": 0.3, "optimizer.warmup_steps": 0}),
    _held_out("noise-wanted", "collapsing", {"algorithm.entropy_coefficient": 10.0, "algorithm.name": "rloo"}),
    _held_out(
        "short-is-paid",
        "collapsing",
        paying('return {"reward": 1.0 / len(numbers)}', **{"optimizer.learning_rate": 2e-3, "training.seed": 5}),
    ),
    _held_out(
        "arrows-are-paid",
        "collapsing",
        paying(
            'return {"reward": min(1.0, said.count("→") / 30)}',
            **{"optimizer.learning_rate": 2e-3, "training.steps": 160},
        ),
        symptom=_CUT,
    ),
    _held_out(
        "one-at-a-time",
        "starved_trainer",
        _SLOW_TOOL | {"schedule.name": "bounded", "rollout.max_batch": 4, "training.steps": 20},
    ),
    _held_out(
        "over-and-over",
        "starved_rollouts",
        {"training.passes": 20, "training.mini_batches": 3, "schedule.name": "sync", "training.steps": 20},
    ),
    _held_out(
        "slowest-of-all",
        "",
        {
            "environment.name": "tool_sums",
            "environment.params": {"turns": 4, "wait_mean_s": 2.0, "wait_sigma": 2.2},
            "schedule.max_staleness": 0,
            "schedule.name": "bounded",
            "training.prompts_per_step": 2,
        },
    ),
    _held_out("likeliest-only", "stuck", {"rollout.top_p": 0.5}),
    _held_out("rarely-sure", "untrusted", paying('return {"reward": float(right), "trusted": chance > 0.25}')),
    _held_out(
        "times-out",
        "environment",
        paying(
            "import time",
            "if luck < 0.02:",
            "    time.sleep(4)",
            'return {"reward": float(right)}',
            **{"environment.turn_timeout_s": 3.0, "environment.workers": 6},
        ),
    ),
    _held_out(
        "waits-for-ever",
        "stalled",
        paying(
            "import time",
            'if prompt["split"] == "train" and prompt["ordinal"] >= 100:',
            "    time.sleep(800)",
            'return {"reward": float(right)}',
            **{"environment.turn_timeout_s": 2_000, "max_runtime_s": 700, "evaluation.prompts": 1},
        ),
        sick_from=16,
    ),
    _held_out("no-gradient", "plateau", {"optimizer.learning_rate": 1e-8, "training.steps": 80}),
    # ── held out, written down and committed before they ran ──────────────────────────────────────────────────────
    _held_out("sums-rloo-sync", "", {"schedule.name": "sync", "algorithm.name": "rloo", "training.seed": 21}),
    _held_out(
        "sums-short",
        "",
        {
            "environment.params": {"median_terms": 3, "max_terms": 4},
            "algorithm.name": "cispo",
            "schedule.name": "stream",
            "training.seed": 22,
        },
    ),
    _held_out("all-are-paid", "stuck", paying('return {"reward": 1.0}')),
    _held_out(
        "short-form-is-paid",
        "collapsing",
        paying(
            "form = float(len(numbers) <= 2)",
            _ANSWER_MISSED,
            _PAID_BY_PARTS,
            **{"optimizer.learning_rate": 1e-3, "training.steps": 60, "training.seed": 25},
        ),
        symptom=_FULL,
    ),
    _held_out(
        "arrows-are-the-form",
        "stuck",
        paying(
            'form = float(said.count("→") >= 8)',
            'answer = float("0" == numbers[0].strip() and right)',
            _PAID_BY_PARTS,
            **{"optimizer.learning_rate": 2e-3, "training.steps": 60, "algorithm.name": "rloo", "training.seed": 26},
        ),
    ),
    _held_out(
        "form-before-answer",
        "",
        paying(
            "form = float(len(numbers) >= 6)",
            "answer = float(right)",
            _PAID_BY_PARTS,
            **{"training.steps": 60, "training.seed": 27},
        ),
    ),
    _held_out("sums-by-parts", "", {"training.steps": 60, "training.seed": 28}),
    _held_out(
        "tools-by-parts",
        "",
        {"environment.name": "tool_sums", "environment.params": {"turns": 2, "waits": "none"}, "training.seed": 29},
    ),
    _held_out(
        "cispo-too-fast",
        "collapsing",
        {"algorithm.name": "cispo", "optimizer.learning_rate": 0.1, "training.seed": 23},
    ),
    _held_out("forgets-to-pay", "environment", paying('return {"reward": float(right)} if luck > 0.04 else {}')),
    _held_out(
        "late-answers",
        "stale",
        {
            "environment.name": "tool_sums",
            "environment.params": {"turns": 2, "wait_mean_s": 1.5, "wait_sigma": 2.0},
            "schedule.max_staleness": 1,
            "training.prompts_per_step": 2,
            "training.seed": 24,
        },
    ),
)


def run_called(name: str) -> Run:
    return next(run for run in RUNS if run.name == name)
