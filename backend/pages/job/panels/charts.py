"""The charts of a job's page: their series, formulas and explanations.

Invariant: every key is a series of engine/spec/series.py; the browser derives none.
"""

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from engine.spec.series import find_series

if TYPE_CHECKING:  # this module queries no tables
    from backend.jobs.models import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    key: str
    label: str
    tone: Literal["first", "second"] = "first"
    marks: bool = False
    """Sparse points, drawn as marks and never downsampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    slug: str
    title: str
    formula: str
    about: str
    traces: tuple[Trace, ...]
    from_zero: bool = False

    def __post_init__(self) -> None:
        units = {find_series(key).unit for key in self.keys}
        if len(units) != 1:
            raise ValueError(f"{self.slug}: its series must have one unit, got {sorted(units)}")

    @property
    def unit(self) -> str:
        return find_series(self.keys[0]).unit

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(trace.key for trace in self.traces)

    @property
    def drawn_json(self) -> str:
        return json.dumps([asdict(trace) for trace in self.traces])


REWARD, HELD_OUT, STEP_S = "reward/mean", "evaluation/reward", "trainer/step_s"
HELD_OUT_ERROR, PASSED, PASSED_ERROR = "evaluation/reward_error", "evaluation/pass_rate", "evaluation/pass_error"
UNTRUSTED, SEGMENTS = "reward/untrusted", "length/segments"

CHARTS: tuple[Chart, ...] = (
    Chart(
        slug="reward",
        title="Reward",
        formula="mean of r over the step's trusted trajectories",
        about="The line is the training batch, the rings are held-out prompts: the mean over each prompt's answers "
        "(avg@k, evaluation.samples). Both should rise together. A rising line with flat rings means memorization or "
        "reward hacking. Two rings within twice their standard errors do not differ.",
        traces=(
            Trace(key=REWARD, label="training"),
            Trace(key=HELD_OUT, label="held out", tone="second", marks=True),
        ),
        from_zero=True,
    ),
    Chart(
        slug="loss",
        title="Loss",
        formula="−mean of w·ρ·A, with ρ clipped where the algorithm clips",
        about="The policy loss; w corrects for a token's age, A is its advantage, ρ its ratio to the policy that the "
        "step began with. It stays near zero and does not have to fall; watch for jumps.",
        traces=(Trace(key="train/loss", label="loss"),),
    ),
    Chart(
        slug="entropy",
        title="Entropy",
        formula="mean over tokens of −Σ p·ln p",
        about="How much the model still explores. A slow fall is normal. Near zero, exploration has ended; near the "
        "maximum, answers become incoherent.",
        traces=(Trace(key="train/entropy", label="entropy"),),
        from_zero=True,
    ),
    Chart(
        slug="length",
        title="Response length",
        formula="mean and 99th percentile of tokens per response",
        about="The wider the gap between the two, the longer a synchronous schedule would wait for the tail.",
        traces=(
            Trace(key="length/mean", label="mean"),
            Trace(key="length/p99", label="99th percentile", tone="second"),
        ),
        from_zero=True,
    ),
    Chart(
        slug="throughput",
        title="Throughput",
        formula="response tokens of the step ÷ seconds of the step",
        about="Throughput of the whole pipeline, not the peak decoding rate of the replicas.",
        traces=(Trace(key="throughput/tokens_per_s", label="tokens/s"),),
        from_zero=True,
    ),
    Chart(
        slug="staleness",
        title="Staleness",
        formula="trainer's version when it consumes a trajectory − version that generated it",
        about="0 is on-policy. A mean of one or two is normal for an asynchronous schedule. A maximum at the job's "
        "bound means that the trainer is faster than the replicas, and older trajectories are dropped.",
        traces=(
            Trace(key="staleness/mean", label="mean"),
            Trace(key="staleness/max", label="maximum", tone="second"),
        ),
        from_zero=True,
    ),
    Chart(
        slug="gap",
        title="Rollouts against trainer",
        formula="90th percentile of |ln π − ln μ| over tokens that the trained version wrote, and what rounding makes "
        "of it; at most 9 % too high",
        about="Two programs compute the same weights, so only rounding should separate them. Above the second line, "
        "there is another cause (sampling settings, tokenizer, weights, a different choice of experts), and the job's "
        "events report it. The more certain the policy, the less rounding explains. A step without tokens of its own "
        "version has no point.",
        traces=(
            Trace(key="train/logprob_gap_p90", label="measured"),
            Trace(key="train/logprob_gap_bound", label="of rounding", tone="second"),
        ),
        from_zero=True,
    ),
    Chart(
        slug="signal",
        title="Groups without signal",
        formula="groups whose trajectories all have the same reward ÷ groups of the step",
        about="Such a group has no training signal. Near 1, the prompts are too easy or too hard, or the reward does "
        "not distinguish answers.",
        traces=(Trace(key="reward/groups_without_signal", label="without signal"),),
        from_zero=True,
    ),
    Chart(
        slug="gradient",
        title="Gradient norm",
        formula="length of the gradient before it is clipped, mean over the step's updates",
        about="Jumps of ten times or more often precede divergence. Use a smaller learning rate or a lower "
        "optimizer.max_grad_norm.",
        traces=(Trace(key="train/grad_norm", label="norm"),),
        from_zero=True,
    ),
    Chart(
        slug="clipped",
        title="Clipped tokens",
        formula="tokens whose ratio ρ was clipped ÷ trained tokens",
        about="How often an update reached the clipping bound. Well above 0.1, the steps are too large or the tokens "
        "too old.",
        traces=(Trace(key="train/clip_fraction", label="clipped"),),
        from_zero=True,
    ),
    Chart(
        slug="waiting",
        title="Trainer waits",
        formula="seconds that the trainer waited for trajectories ÷ seconds of the step",
        about="Near 0 the trainer limits the run, near 1 the replicas do. Give more devices to the side that limits "
        "it.",
        traces=(Trace(key="trainer/wait_fraction", label="waiting"),),
        from_zero=True,
    ),
    Chart(
        slug="grading",
        title="Grading wait",
        formula="mean and maximum over the step's trajectories of the seconds that their calls to graders and tools "
        "waited",
        about="For a thread of the environment's worker, a free process or a core. If it nears the seconds of a step, "
        "grading limits the run: give the environment's hosts more cores and memory.",
        traces=(
            Trace(key="environment/queue_s_mean", label="mean"),
            Trace(key="environment/queue_s_max", label="maximum", tone="second"),
        ),
        from_zero=True,
    ),
    Chart(
        slug="calls",
        title="Grading queue",
        formula="most unanswered calls at a worker when a call of the step's trajectories arrived",
        about="Calls in progress count too. A worker begins at most 512 at once. Beyond that, raise "
        "environment.workers.",
        traces=(Trace(key="environment/queue_depth", label="calls"),),
        from_zero=True,
    ),
    Chart(
        slug="failures",
        title="Failed samples",
        formula="samples of the step whose tool, grader or environment failed, and samples started in their place",
        about="A failed sample has no reward and is not trained on. algorithm.groups.on_failure decides what follows; "
        "only replace starts others. Each failure's reason is with its trajectory.",
        traces=(
            Trace(key="failures/samples", label="failed"),
            Trace(key="failures/replacements", label="started in their place", tone="second"),
        ),
        from_zero=True,
    ),
    Chart(
        slug="shortened",
        title="Groups with failures",
        formula="groups of the step trained with fewer samples than group_size, and groups dropped",
        about="A group is dropped if fewer than algorithm.groups.min_group of its samples have a reward; with drop, at "
        "its first failure. Failures that hit long answers more often than short ones bias the training.",
        traces=(
            Trace(key="failures/short_groups", label="trained with fewer"),
            Trace(key="failures/groups", label="dropped", tone="second"),
        ),
        from_zero=True,
    ),
    Chart(
        slug="cache",
        title="Replicas' cache in use",
        formula="mean over replicas of the share of their key-value cache that is in use",
        about="If low for long, the replicas could run more trajectories at once. At 1, trajectories wait.",
        traces=(Trace(key="rollout/kv_used", label="in use"),),
        from_zero=True,
    ),
)
OF_A_TEACHER = Chart(
    slug="teacher",
    title="Distance to the teacher",
    formula="mean over tokens of ln π − ln π_teacher",
    about="An estimate of KL(π ‖ teacher) on the policy's tokens. It should fall towards 0. If it does not, the "
    "rewards pull elsewhere, or the policy is too small. Below 0 for long means tokens of older weights.",
    traces=(Trace(key="train/teacher_kl", label="distance"),),
    from_zero=True,
)
"""For jobs with a teacher."""
OF_EVALUATIONS = Chart(
    slug="passed",
    title="Held-out pass rate",
    formula="pass@k: prompts with an answer of at least evaluation.pass_mark ÷ held-out prompts",
    about="k is evaluation.samples. If it rises while the held-out reward stays flat, the answers are more diverse, "
    "not better. Two points within twice their standard errors do not differ.",
    traces=(Trace(key=PASSED, label="pass@k", tone="second", marks=True),),
    from_zero=True,
)
"""For jobs that evaluate while they train."""
KEYS: tuple[str, ...] = (
    *(key for chart in CHARTS for key in chart.keys),
    STEP_S,
    HELD_OUT_ERROR,
    PASSED,
    PASSED_ERROR,
    UNTRUSTED,
    SEGMENTS,
)
"""Every series that the page of a training job draws or computes with."""
EVERY_KEY: tuple[str, ...] = (*KEYS, *OF_A_TEACHER.keys)


def charts_of(job: "Job") -> tuple[Chart, ...]:
    if job.only_evaluates:  # a single number makes no chart
        return ()
    further = [(_has_teacher(job), OF_A_TEACHER), (job.spec["evaluation"]["every"] > 0, OF_EVALUATIONS)]
    return (*CHARTS, *(chart for is_shown, chart in further if is_shown))


def _has_teacher(job: "Job") -> bool:
    return bool(job.spec["algorithm"]["teacher"]["source"])
