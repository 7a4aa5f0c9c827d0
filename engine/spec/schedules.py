"""Schedules by name: who waits for whom in one line each, and how stale a trajectory may be.

Whatever lists them reads this table: spec, policy, benches, glossary, pages; a test holds the READMEs to it. What a
schedule decides is in engine/policy/schedule.py.

How stale. With `sync`, `one_step` and `stream` the bound follows from their windows. The others run ahead of the
trainer as far as an answer is long, and have FAR_ENOUGH unless the job says otherwise. AReaL (arXiv 2505.24298,
table 2) measured by how much a bound on staleness lowers AIME24 where the loss corrects for it: 42.0 at 0, 42.2 at 4,
41.0 at 8, 38.7 at 16, 36.9 without a bound. At 8 a job loses little by age; what it loses by dropping its usage tells:
a group goes whole when one of its answers is too old.

How far ahead. A lead of two: one batch lies ready when the trainer comes back, one is being generated. More only adds
staleness. With windows the barrier decides, and a job cannot say another lead.
"""

from dataclasses import dataclass
from typing import Final, Literal

ScheduleName = Literal["laminar", "sync", "one_step", "stream", "partial", "bounded", "inflight", "paper"]

FAR_ENOUGH: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleEntry:
    waits: str
    """The rule of who waits for whom."""
    max_staleness: int = FAR_ENOUGH
    """Unless the job names another bound; with windows, what they come to."""
    lead_steps: float | None = 2
    """Steps' worth of groups that may be open beyond the step in training, unless the job says otherwise. None: as many
    as its windows have, and nothing else."""
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
        waits="running answers are interrupted at new weights, their KV cache is recomputed, and they go on"
    ),
    "inflight": ScheduleEntry(
        waits="nobody: new weights are laid under answers that go on, and what they have cached stays of the old ones"
    ),
    "paper": ScheduleEntry(
        waits="a replica has one version; what runs on it ends before it takes the next, and tails move together",
        repacks=True,
    ),
    "laminar": ScheduleEntry(
        waits="nobody: what runs ends on the weights that it began with, what is fresh starts on the newest beside it",
        repacks=True,
    ),
}


def all_schedules() -> str:
    """For a glossary, or beside a choice."""
    return " ".join(f"{name}: {entry.waits}." for name, entry in SCHEDULES.items())


def own_bounds() -> str:
    return ", ".join(f"{name} {entry.max_staleness}" for name, entry in SCHEDULES.items())


def own_leads() -> str:
    return ", ".join(
        f"{name} {entry.lead_steps:g}" for name, entry in SCHEDULES.items() if entry.lead_steps is not None
    )
