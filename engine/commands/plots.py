"""`python -m engine simulate plots REPORT.json FOLDER`: a page of plots of a report, and a picture of each.

The page is self-contained. The pictures are screenshots of its figures by the Chromium of the browser tests; without
Chromium only the page is written, with a message.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from engine.sim.compare.plots import figures, page

PLOTLY: Final = Path(__file__).parents[2] / "frontend" / "static" / "vendor" / "plotly" / "plotly-basic.min.js"
BROWSERS: Final = ("chromium", "chromium-browser", "google-chrome")
# Chromium's virtual time, which skips idle time: enough to load the library of 1.2 MB and draw.
DRAWN_AFTER_MS: Final = 10_000
LONGEST_S: Final = 300
BELOW: Final = 60
"""Pixels for the caption below a figure."""


def plots(report_path: Path, folder: Path) -> int:
    try:
        report = json.loads(report_path.read_text().splitlines()[-1])
        written, drawn = page(report, PLOTLY.read_text()), figures(report)
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}")
    except (json.JSONDecodeError, IndexError, KeyError, TypeError) as error:
        return _refuse(f"{report_path} must be the output of `simulate paper --json` ({type(error).__name__}: {error})")
    folder.mkdir(parents=True, exist_ok=True)
    page_path = folder / "plots.html"
    page_path.write_text(written)
    _show(page_path)
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        sys.stderr.write(f"cannot draw pictures; install one of {', '.join(BROWSERS)}\n")
        return 0
    for figure in drawn:
        _show(_take_screenshot(browser, page_path, figure.name, height=figure.layout["height"] + BELOW))
    return 0


def _take_screenshot(browser: str, page_path: Path, name: str, *, height: int) -> Path:
    picture = page_path.with_name(f"{name}.png")
    command = [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += [f"--window-size=1180,{height}", f"--virtual-time-budget={DRAWN_AFTER_MS}", f"--screenshot={picture}"]
    command.append(f"{page_path.resolve().as_uri()}#{name}")
    subprocess.run(command, check=True, capture_output=True, timeout=LONGEST_S)
    return picture


def _show(path: Path) -> None:
    sys.stdout.write(f"{path}\n")


def _refuse(why: str) -> int:
    sys.stderr.write(f"{why}\n")
    return 2
