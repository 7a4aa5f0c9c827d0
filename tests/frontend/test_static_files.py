"""Static files: vendored libraries, colours, sizes of modules, and number formats on server and browser."""

import gzip
import hashlib
import json
import re
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from posixpath import dirname, join, normpath

import pytest
from django.template.loader import render_to_string
from django.test import Client

from backend.jobs.models import Job
from backend.pages.job.tabs import TABS, tab_of
from backend.pages.templatetags import laminar

FRONTEND = Path(__file__).resolve().parents[2] / "frontend"


def test_what_is_vendored_is_what_the_list_says() -> None:
    listed = (FRONTEND / "static/vendor/VENDORED.md").read_text()
    for bundle in (FRONTEND / "static/vendor").rglob("*.js"):
        assert hashlib.sha256(bundle.read_bytes()).hexdigest() in listed, bundle.name
    assert (FRONTEND / "static/vendor/plotly/LICENSE").is_file()


def test_static_files_are_small_cached_and_content_hashed(db: None) -> None:
    client, seen, sizes = Client(), set[str](), 0
    page = client.get("/help/").content.decode() + _job_page()
    wanted = set(re.findall(r"(?:href|src)=[\"'](/static/[^\"']+\.(?:js|css|svg))[\"']", page))
    assert any("/plotly-basic.min." in each for each in wanted)
    while wanted - seen:
        address = (wanted - seen).pop()
        seen.add(address)
        plain = client.get(address)
        small = client.get(address, headers={"Accept-Encoding": "gzip, br"})
        assert plain.status_code == 200 and re.search(r"\.[0-9a-f]{10}\.\w+$", address), address
        assert small["Cache-Control"] == "max-age=31536000, public, immutable"
        assert small["X-Content-Type-Options"] == "nosniff" and "default-src 'none'" in small["Content-Security-Policy"]
        assert gzip.decompress(small.content) == plain.content and len(small.content) < len(plain.content)
        assert hashlib.sha256(plain.content).hexdigest()[:10] in address
        sizes += len(small.content)
        told = plain.content.decode()
        found = re.findall(r"(?:from|import)\s*[\"'](\.[^\"']+)[\"']", told) if address.endswith(".js") else []
        found += re.findall(r"url\([\"']?((?!data:|#)[^\"')]+)", told) if address.endswith(".css") else []
        wanted |= {normpath(join(dirname(address), each)) for each in found}
    assert {"part", "streamlines"} <= {each.split("/")[-1].split(".")[0] for each in seen}
    assert sizes <= 600_000, "of the first load of a job's page, compressed"


def _job_page() -> str:
    """A job's first tab, which has charts."""
    return render_to_string(
        "pages/job/tabs/overview.html", {"job": Job(steps=1), "tab": tab_of(""), "charts": [("", "")]}
    )


def test_another_releases_name_is_answered_and_kept_by_nobody(db: None) -> None:
    answer = Client().get("/static/js/lib/part.0123456789.js")
    assert answer.status_code == 200 and answer["Cache-Control"] == "no-store"
    assert Client().get("/static/js/lib/none.0123456789.js").status_code == 404
    assert Client().get("/static/js/../../../pyproject.0123456789.toml").status_code == 404
    refused = Client().get("/static/js/lib/part.0123456789.js", headers={"Accept-Encoding": "gzip;q=0"})
    assert "Content-Encoding" not in refused


def test_text_is_readable_on_what_it_stands_on() -> None:
    """WCAG AA: 4.5 to 1, in light and in dark."""
    tokens = dict(
        re.findall(r"--([\w-]+): light-dark\((#\w{6}, #\w{6})\)", (FRONTEND / "static/css/tokens.css").read_text())
    )
    pairs = [
        (text, ground) for text in ("ink", "ink-2", "ink-3", "stream", "bad") for ground in ("paper", "surface", "sunk")
    ]
    pairs += [("ink-2", "stream-soft"), ("stream-strong", "stream-soft"), ("on-stream", "stream")]
    pairs += [(tone, f"{tone}-soft") for tone in ("good", "warn", "bad", "calm", "violet", "ember")]
    for theme in (0, 1):
        colours = {name: both.split(", ")[theme] for name, both in tokens.items()}
        poor = [pair for pair in pairs if contrast(colours[pair[0]], colours[pair[1]]) < 4.5]
        assert not poor, f"{('light', 'dark')[theme]}: {poor}"
        assert contrast("#ffffff", colours["bad-solid"]) >= 4.5
        assert contrast(colours["line-strong"], colours["surface"]) >= 3, "the edge of a field"


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_every_module_of_a_tab_is_asked_for_at_once() -> None:
    """A module that is only imported is fetched after its importer, one round trip later; preloading avoids this."""
    scripts = FRONTEND / "static/js"
    for tab in TABS:
        found, left = set[str](), [f"pages/{tab.script}"]
        while left:
            name = left.pop()
            text = (scripts / f"{name}.js").read_text()
            told = [normpath(join(dirname(name), each)) for each in re.findall(r"from \"(\.[^\"]+)\.js\"", text)]
            left += [each for each in told if each not in found]
            found |= set(told)
        assert found == set(tab.modules), tab.title


def test_our_modules_are_small() -> None:
    lengths = {path.name: path.read_text().count("\n") for path in (FRONTEND / "static/js").rglob("*.js")}
    assert max(lengths.values()) <= 100, lengths


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed; the browser tests cover the rest")
def test_server_and_browser_format_numbers_alike() -> None:
    values = [0, 1, -1, 0.5, -0.0312, 0.00012, 0.1, 9.999, 12.345, 99.96, 100, 843.2, 12_345, 1e8, 0.76, 120]
    seconds = [0, 59.4, 60, 185, 3_600, 7_799, 90_000]
    module = (FRONTEND / "static/js/lib/format.js").as_uri()
    script = (
        f"import * as f from '{module}';"
        f"const v={json.dumps(values)}, s={json.dumps(seconds)};"
        "console.log(JSON.stringify([v.map(f.number), v.map(f.reward), v.map(f.change), s.map(f.span)]))"
    )
    done = subprocess.run(["node", "--input-type=module", "-e", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [
        [laminar.number(value) for value in values],
        [laminar.reward(value) for value in values],
        [laminar.change(value) for value in values],
        [laminar.span(value) for value in seconds],
    ]


def test_ages_are_told_in_the_largest_unit() -> None:
    now = datetime.now(UTC)
    told = [laminar.ago(now - timedelta(seconds=s), now) for s in (1, 30, 90, 7_300, 200_000)]
    assert told == ["just now", "30 s ago", "1 min ago", "2 h ago", "2 d ago"]
