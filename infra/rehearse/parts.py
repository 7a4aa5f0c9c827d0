"""The parts of a rehearsal in their order. Each may be run alone in a folder where those before it were kept."""

from collections.abc import Callable, Mapping, Sequence

from infra.rehearse import container_engine, faults, first_minute, images, jobs, restore, rotate, site, upgrade
from infra.rehearse.work import Work
from infra.setup.terminal import say


def _start_engine(work: Work) -> None:
    container_engine.start(work)
    say(f"  ({container_engine.versions(work)})")


PARTS: Mapping[str, Callable[[Work], None]] = {
    "engine": _start_engine,
    "images": images.build,
    "up": site.bring_up,
    "begin": first_minute.run,
    "jobs": jobs.run,
    "faults": faults.run,
    "backup": restore.back_up,
    "upgrade": upgrade.run,
    "rotate": rotate.run,
    "restore": restore.run,
}


def run_parts(work: Work, only: str | None, *, without: Sequence[str]) -> None:
    for name, part in PARTS.items():
        # The container engine is what every other part goes by.
        if name not in without and only in (None, name):
            if name != "engine":
                container_engine.start(work)
            say(name)
            part(work)
    say("Rehearsed.")
