"""How much of a core twelve visible charts take while a step comes every second, with band, raw and smoothed line.

    .laminar/venv/bin/python -m infra.local.testing -- \\
        .laminar/venv/bin/python -m tests.bench.site.curves [--steps 2000] [--seconds 60]

Counts processor time, as Chromium reports it for its processes: a busy machine makes it longer, not wrong. The browser
has no GPU here: what one would do is in the numbers too. `others` is the same page with no chart in sight.
"""

import argparse
import math
import os
import random
import shutil
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import django
from playwright.sync_api import CDPSession, Page, sync_playwright

from tests.bench.site.picture_pages import FLAGS, seeded, sign_in

WIDTH, HEIGHT = 1280, 900
COUNT = (
    "window.drawings = 0; const react = Plotly.react;"
    "Plotly.react = (...all) => { drawings++; return react(...all); }; null"
)

TO_THE_CHARTS = (
    "scrollTo({ top: document.querySelector('.charts').getBoundingClientRect().top + scrollY - 190,"
    " behavior: 'instant' })"
)
SEEN = (
    "[...document.querySelectorAll('.charts .panel')].map((each) => each.getBoundingClientRect())"
    ".filter((at) => at.top >= 0 && at.bottom <= innerHeight).length"
)


def values_at(step: int, rng: random.Random) -> dict[str, float]:
    """One of every series that is drawn."""
    from backend.pages.job.panels.charts import HELD_OUT, KEYS

    return {key: 0.5 + 0.3 * math.sin(step / 70) + rng.gauss(0, 0.1) for key in KEYS if key != HELD_OUT}


def stored(job: Any, steps: range, rng: random.Random) -> None:
    from django.db import transaction

    from backend.jobs.lifecycle import locked_job, next_cursor
    from backend.jobs.models import Job
    from backend.telemetry.series.points import NewPoint, store_points

    begun = datetime.now(UTC) - timedelta(seconds=steps.stop)
    with transaction.atomic():
        locked = locked_job(job.pk)
        first = next_cursor(locked, count=len(steps)) - len(steps) + 1
        points = [
            NewPoint(name=name, step=step, at=begun + timedelta(seconds=step), value=value, cursor=first + index)
            for index, step in enumerate(steps)
            for name, value in values_at(step, rng).items()
        ]
        store_points(locked, 1, points)
        Job.objects.filter(pk=job.pk).update(step=steps[-1])


def spent(session: CDPSession) -> dict[str, float]:
    """Seconds of the processor by kind of process."""
    found: dict[str, float] = {}
    for each in session.send("SystemInfo.getProcessInfo")["processInfo"]:
        found[each["type"]] = found.get(each["type"], 0.0) + each["cpuTime"]
    return found


def watched(
    page: Page, session: CDPSession, job: Any, first: int, seconds: int, rng: random.Random
) -> dict[str, float]:
    """A step a second; the share of a core by kind of process, and drawings a second."""
    page.evaluate("window.drawings = 0")
    before, begun = spent(session), time.monotonic()
    for index in range(seconds):
        stored(job, range(first + index, first + index + 1), rng)
        page.wait_for_timeout(max(0.0, 1_000 * (begun + index + 1 - time.monotonic())))
    took, after = time.monotonic() - begun, spent(session)
    shares = {kind: (after[kind] - before.get(kind, 0.0)) / took for kind in after}
    return shares | {"drawings a second": page.evaluate("drawings") / took}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2_000, help="that the run has behind it")
    parser.add_argument("--seconds", type=int, default=60)
    options = parser.parse_args()
    django.setup()
    chromium = shutil.which("chromium") or parser.error("chromium is missing: apt-get install chromium")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"  # Playwright's loop runs in this thread; so does the ORM
    with seeded() as local, sync_playwright() as playwright:
        from backend.jobs.models import Job

        job, rng = Job.objects.filter(state="running").latest("created_at"), random.Random(7)
        stored(job, range(job.step + 1, options.steps + 1), rng)
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        session = browser.new_browser_cdp_session()
        page = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}).new_page()
        sign_in(page, local)
        page.goto(f"{local['url']}/jobs/{job.pk}/metrics/")
        page.evaluate(COUNT)
        page.evaluate(TO_THE_CHARTS)
        page.wait_for_timeout(3_000)
        seen = page.evaluate(SEEN)
        charts = watched(page, session, job, options.steps + 1, options.seconds, rng)
        page.evaluate(
            "document.querySelector('.charts').style.marginTop = '200vh'; scrollTo({ top: 0, behavior: 'instant' })"
        )
        page.wait_for_timeout(2_000)
        others = watched(page, session, job, options.steps + options.seconds + 1, options.seconds, rng)
        browser.close()
    print(f"{seen} charts in sight, after {options.steps} steps, {options.seconds} s each, shares of a core:")
    for name, shares in (("charts", charts), ("others", others)):
        told = ", ".join(f"{kind} {share:.3f}" for kind, share in sorted(shares.items()) if kind != "drawings a second")
        total = sum(share for kind, share in shares.items() if kind != "drawings a second")
        print(f"  {name}: {total:.3f} ({told}); {shares['drawings a second']:.1f} drawings a second")


if __name__ == "__main__":
    main()
