"""How soon is the page of a long run there: 1,000,000 stored points of metrics and 100,000 trajectories.

    python -m infra.local.testing -- python -m tests.bench.site.page_load \\
        [--points 1000000] [--trajectories 100000] [--loads 10]

Real throughout: uvicorn, Postgres, headless Chromium without a GPU. A load counts from the browser's own start of the
navigation until the first chart is drawn and the page shows “live”: then every control answers. The first load has an
empty cache, the others have the static files, as a reader's second look has. Bytes are those on the wire.
"""

import argparse
import os
import random
import shutil
import statistics
from typing import Any, Final

import django
from playwright.sync_api import Browser, Page, sync_playwright

from tests.bench.site.curves import stored, values_at
from tests.bench.site.ingest import machine
from tests.bench.site.picture_pages import FLAGS, seeded, sign_in
from tests.waiting import eventually

STEPS_AT_ONCE: Final = 500
ROWS_AT_ONCE: Final = 2_000
NOTE_WHEN_READY: Final = """
(function look() {
  const isDrawn = document.querySelector("[data-chart=reward] .main-svg");
  const isLive = document.querySelector("[data-connection-words]")?.textContent === "live";
  if (isDrawn && isLive) window.readyMs = performance.now(); else requestAnimationFrame(look);
})();
"""
BYTES: Final = """({
  document: performance.getEntriesByType("navigation")[0].transferSize,
  data: performance.getEntriesByType("resource").filter(({ initiatorType: by }) => by === "fetch")
    .reduce((sum, { transferSize }) => sum + transferSize, 0),
  files: performance.getEntriesByType("resource").filter(({ initiatorType: by }) => by !== "fetch")
    .reduce((sum, { transferSize }) => sum + transferSize, 0),
})"""


def fill(job: Any, *, num_points: int, num_trajectories: int, rng: random.Random) -> int:
    """Gives the last step."""
    from backend.telemetry.models import Trajectory

    last = int(job.step) + num_points // len(values_at(1, rng))
    for first in range(job.step + 1, last + 1, STEPS_AT_ONCE):
        stored(job, range(first, min(first + STEPS_AT_ONCE, last + 1)), rng)
    like = Trajectory.objects.filter(job=job).latest("pk")
    names = [each.attname for each in Trajectory._meta.concrete_fields if not each.primary_key]
    for first in range(0, num_trajectories, ROWS_AT_ONCE):
        rows = []
        for index in range(first, min(first + ROWS_AT_ONCE, num_trajectories)):
            copy = Trajectory(**{name: getattr(like, name) for name in names})
            copy.step = max(1, last - index * last // num_trajectories)
            copy.prompt_ordinal, copy.sample, copy.cursor = 1_000 + index, index % 8, like.cursor
            rows.append(copy)
        Trajectory.objects.bulk_create(rows)
    return last


def loads(browser: Browser, local: dict[str, str], path: str, times: int) -> list[dict[str, float]]:
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.add_init_script(NOTE_WHEN_READY)
    page = context.new_page()
    sign_in(page, local)
    return [_load(page, local["url"] + path) for _ in range(times)]


def _load(page: Page, address: str) -> dict[str, float]:
    page.goto(address)
    ready = eventually(
        lambda: page.evaluate("window.readyMs ?? null"),
        "the page is ready",
        until=lambda ready_ms: ready_ms is not None,
        every_s=0.05,
        pause=lambda seconds: page.wait_for_timeout(1_000 * seconds),
    )
    return {"ready_s": ready / 1_000, **page.evaluate(BYTES)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--loads", type=int, default=10)
    options = parser.parse_args()
    django.setup()
    chromium = shutil.which("chromium") or parser.error("chromium is missing: apt-get install chromium")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"  # Playwright's loop runs in this thread; so does the ORM
    with seeded() as local, sync_playwright() as playwright:
        from backend.jobs.models import Job

        job = Job.objects.filter(state="running").latest("created_at")
        last = fill(
            job, num_points=options.points, num_trajectories=options.trajectories, rng=random.Random(11)
        )  # fmt: skip
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        loads_by_tab = {tab: loads(browser, local, f"/jobs/{job.pk}/{tab}", options.loads) for tab in ("", "metrics/")}
        browser.close()
    print(f"{machine()}; {last} steps, {options.points} points, {options.trajectories} trajectories")
    for tab, each in loads_by_tab.items():
        later = sorted(one["ready_s"] for one in each[1:])
        bytes_of = {
            name: [round(one[name] / 1_000, 1) for one in (each[0], each[-1])] for name in ("document", "data", "files")
        }
        print(
            f"  {tab or 'overview'}: first {each[0]['ready_s']:.2f} s, later {statistics.median(later):.2f} s in the"
            f" median, {later[-1]:.2f} s at most; kB on the wire, first and last load: {bytes_of}"
        )


if __name__ == "__main__":
    main()
