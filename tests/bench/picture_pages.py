"""Take a screenshot of every page of a running site, as a signed-in person sees it.

    .laminar/venv/bin/python tests/bench/picture_pages.py --out /tmp/pictures [--readme infra/docs/job-page.png]

Needs `make up` and a job. Widths of 1,280 and 390 pixels, light and dark; also says what the browser complained about.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
SIZES = {1280: 900, 390: 844}


def sign_in(page: Page, local: dict[str, str]) -> None:
    page.goto(f"{local['url']}/accounts/login/")
    page.locator("input[type=email]").fill(local["user"])
    page.locator("input[type=password]").fill(local["password"])
    page.locator("input[type=password]").press("Enter")
    page.wait_for_url("**/jobs/")


def newest_job(page: Page) -> str:
    return page.locator("a[href^='/jobs/job_']").first.get_attribute("href") or ""


def take_all(browser: Browser, local: dict[str, str], home: Path, out: Path) -> list[str]:
    complaints: list[str] = []
    for width, height in SIZES.items():
        for theme in ("light", "dark"):
            context = browser.new_context(
                viewport={"width": width, "height": height},
                color_scheme=theme,
            )
            page = context.new_page()
            page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
            page.goto(f"{local['url']}/accounts/login/")
            page.screenshot(path=out / f"sign-in-{width}-{theme}.png", full_page=True)
            sign_in(page, local)
            pages = {"jobs": "/jobs/", "new": "/jobs/new", "help": "/help/", "keys": "/keys/", "members": "/members/"}
            pages["job"] = newest_job(page)
            for name, path in pages.items():
                page.goto(local["url"] + path)
                page.wait_for_timeout(1_500)
                page.screenshot(path=out / f"{name}-{width}-{theme}.png", full_page=True)
            context.close()
    return complaints


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, default=ROOT / ".laminar")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--readme", type=Path, help="also copy the job page there")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    local = json.loads((options.home / "local.json").read_text())
    chromium = shutil.which("chromium") or sys.exit("chromium is missing: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        complaints = take_all(browser, local, options.home, options.out)
        browser.close()
    if options.readme:
        shutil.copyfile(options.out / "job-1280-light.png", options.readme)
    print("\n".join(sorted(set(complaints))) or "the browser complained of nothing")


if __name__ == "__main__":
    main()
