"""Take a screenshot of every page of a site, as a signed-in person sees it.

    .laminar/venv/bin/python tests/bench/site/picture_pages.py --out /tmp/pictures [--readme infra/docs/job-page.png]
    .laminar/venv/bin/python -m infra.local.testing -- \\
        .laminar/venv/bin/python -m tests.bench.site.picture_pages --seeded --out /tmp/pictures

The first needs `make up` and a job; the second makes a world of its own in a throw-away database and serves it.
Widths of 1,280 and 390 pixels, light and dark. Also prints the browser's complaints, and which page is wider than
its window.
"""

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[3]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
SIZES = {1280: 900, 390: 844}
PATHS = {
    "jobs": "/jobs/", "new": "/jobs/new", "queue": "/queue/", "usage": "/usage/", "usage-by-job": "/usage/?by=job",
    "keys": "/keys/", "members": "/members/", "webhooks": "/webhooks/", "audit": "/audit/?check=1", "help": "/help/",
}  # fmt: skip


@contextmanager
def seeded() -> Iterator[dict[str, str]]:
    """A world in the database that the environment names, and a server of it."""
    import django

    django.setup()
    from django.core.management import call_command

    from tests.frontend import seed
    from tests.waiting import eventually

    call_command("migrate", verbosity=0)
    seed.fill()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "uvicorn", "backend.asgi:application", "--port", url.rpartition(":")[2]]
    environment = os.environ | {"LAMINAR_PUBLIC_URL": url, "LAMINAR_ALLOWED_HOSTS": "127.0.0.1"}
    with subprocess.Popen([*command, "--log-level", "warning"], cwd=ROOT, env=environment) as server:
        try:
            eventually(
                lambda: urllib.request.urlopen(f"{url}/help/", timeout=2).close(),
                "the server answers",
                until=lambda _: True,
                ignoring=(OSError,),
                every_s=0.2,
                process=server,
            )
            yield {"url": url, "user": "ada@example.org", "password": seed.PASSWORD}
        finally:
            server.terminate()


def sign_in(page: Page, local: dict[str, str]) -> None:
    page.goto(f"{local['url']}/accounts/login/")
    page.locator("input[type=email]").fill(local["user"])
    page.locator("input[type=password]").fill(local["password"])
    page.locator("input[type=password]").press("Enter")
    page.wait_for_url(lambda url: "/accounts/login/" not in url)


def first_link(page: Page, local: dict[str, str], path: str, start: str) -> str | None:
    page.goto(local["url"] + path)
    links = page.locator(f"a[href^='{start}']")
    return links.first.get_attribute("href") if links.count() else None


def take_all(browser: Browser, local: dict[str, str], out: Path, only: Sequence[str]) -> list[str]:
    complaints: list[str] = []
    for width, height in SIZES.items():
        for theme in ("light", "dark"):
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
            page = context.new_page()
            page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
            page.goto(f"{local['url']}/accounts/login/")
            page.screenshot(path=out / f"sign-in-{width}-{theme}.png", full_page=True)
            sign_in(page, local)
            paths = PATHS | {
                "job": first_link(page, local, "/jobs/", "/jobs/job_"),
                "failed": first_link(page, local, "/jobs/?state=failed&q=grader", "/jobs/job_"),
                "webhook": first_link(page, local, "/webhooks/", "/webhooks/whk_"),
            }
            for name, path in paths.items():
                if path is None or (only and name not in only):
                    continue
                page.goto(local["url"] + path)
                page.wait_for_timeout(1_500)
                page.screenshot(path=out / f"{name}-{width}-{theme}.png", full_page=True)
                wide = page.evaluate("document.documentElement.scrollWidth")
                if wide > width:
                    complaints.append(f"{name} is {wide} pixels wide in a window of {width}")
            context.close()
    return complaints


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, default=ROOT / ".laminar")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[], help="names of pages")
    parser.add_argument("--seeded", action="store_true", help="make and serve a world; see above")
    parser.add_argument("--readme", type=Path, help="also copy the job page there")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    chromium = shutil.which("chromium") or sys.exit("chromium is missing: apt-get install chromium")
    with seeded() if options.seeded else running(options.home) as local, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        complaints = take_all(browser, local, options.out, options.only)
        browser.close()
    if options.readme:
        shutil.copyfile(options.out / "job-1280-light.png", options.readme)
    print("\n".join(sorted(set(complaints))) or "the browser complained of nothing")


@contextmanager
def running(home: Path) -> Iterator[dict[str, str]]:
    local: dict[str, str] = json.loads((home / "local.json").read_text())
    yield local


if __name__ == "__main__":
    main()
