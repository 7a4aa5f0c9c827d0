"""Schedules by name: which waits they impose, one line each, and how stale a trajectory may be.

Spec, policy, benches, glossary and pages read this table; a test compares the READMEs with it. The decisions of a
schedule are in engine/policy/schedule.py.

Staleness. For `sync`, `one_step` and `stream` the bound follows from their windows. The others run ahead of the trainer
by the length of an answer and have the bound FAR_ENOUGH by default. AReaL (arXiv 2505.24298, table 2) measured how much
a bound on staleness lowers AIME24 when the loss corrects for it: 42.0 at 0, 42.2 at 4, 41.0 at 8, 38.7 at 16, 36.9
without a bound. At 8 a job loses little by staleness. A bound also drops work, which the job's usage shows: a group is
dropped whole when one of its answers is too old.

Lead. Two steps: one batch is ready when the trainer needs it, another is being generated. More only adds staleness.
With windows the barrier decides, and a job cannot set a lead.
"""

from dataclasses import dataclass
from typing import Final, Literal

ScheduleName = Literal["laminar", "sync", "one_step", "stream", "partial", "bounded", "inflight", "paper"]

FAR_ENOUGH: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleEntry:
    waits: str
    """Who waits for whom, as a sentence for users."""
    max_staleness: int = FAR_ENOUGH
    """The default bound; with windows, the staleness that follows from them."""
    lead_steps: float | None = 2
    """The default number of steps whose groups may be open beyond the step in training. None: fixed by the windows."""
    window_steps: int = 0
    """Steps whose groups start from the same weights, behind a barrier; 0: no barrier."""
    repacks: bool = False


SCHEDULES: Final[dict[ScheduleName, ScheduleEntry]] = {
    "sync": ScheduleEntry(
        waits="every step waits for all of its answers, every answer for the weights of the step before",
        max_staleness=0,
        lead_steps=None,
        window_steps=1,
    ),
    "one_step": ScheduleEntry(
        waits="the next step's answers are generated while this one trains, with weights one step old",
        max_staleness=1,
        lead_steps=None,
        window_steps=1,
    ),
    "stream": ScheduleEntry(
        waits="windows of several steps from the same weights; the trainer takes each step's share as it comes",
        max_staleness=3,
        lead_steps=None,
        window_steps=2,
    ),
    "bounded": ScheduleEntry(waits="generation runs ahead by a fraction of a step", lead_steps=0.5),
    "partial": ScheduleEntry(
        waits="new weights interrupt running answers, which recompute their KV cache and continue"
    ),
    "inflight": ScheduleEntry(
        waits="no one: running answers continue on new weights and keep the KV cache of the old ones"
    ),
    "paper": ScheduleEntry(
        waits="a replica holds one version; its answers finish before it takes the next, and tails move together",
        repacks=True,
    ),
    "laminar": ScheduleEntry(
        waits="no one: running answers finish on the weights that they began with, new ones start on the newest",
        repacks=True,
    ),
}


def all_schedules() -> str:
    """All schedules with their sentences, for the documentation of the setting."""
    return " ".join(f"{name}: {entry.waits}." for name, entry in SCHEDULES.items())


def own_bounds() -> str:
    return ", ".join(f"{name} {entry.max_staleness}" for name, entry in SCHEDULES.items())


def own_leads() -> str:
    return ", ".join(
        f"{name} {entry.lead_steps:g}" for name, entry in SCHEDULES.items() if entry.lead_steps is not None
    )
