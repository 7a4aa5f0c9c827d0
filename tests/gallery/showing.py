"""A page with all screenshots: one row per entry, one column per look."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from tests.gallery.looking import LOOKS
from tests.gallery.manifest import Entry


def write_index(folder: Path, entries: Sequence[Entry]) -> Path:
    rows = "".join(_row(folder, entry) for entry in entries)
    page = folder / "index.html"
    page.write_text(
        "<!doctype html><meta charset=utf-8><title>Gallery</title><style>body{font:14px system-ui;margin:2rem}"
        "section{display:flex;gap:1rem;align-items:start;margin:0 0 3rem}img{border:1px solid #bbb;max-width:32vw;"
        f"height:auto}}h2{{font-size:1rem}}</style><h1>Every page in every state</h1>{rows}"
    )
    return page


def _row(folder: Path, entry: Entry) -> str:
    pictures = [f"{entry.name}-{look}.png" for look in LOOKS]
    shown = "".join(
        f'<a href="{name}"><img loading=lazy src="{name}" alt=""></a>' for name in pictures if (folder / name).exists()
    )
    return f"<h2>{escape(entry.name)}</h2><section>{shown}</section>"
