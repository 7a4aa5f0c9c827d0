"""Positions in the charts of a page, for tests that use the pointer."""

from typing import Any

from playwright.sync_api import Page


def place_of(page: Page, chart: str, x: float) -> tuple[float, float]:
    """The middle of the plot at a value of its axis."""
    found = page.evaluate(
        "([chart, x]) => { const plot = document.querySelector(`[data-chart='${chart}'] [data-plot]`), "
        "at = plot.getBoundingClientRect(), { xaxis, yaxis } = plot._fullLayout; "
        "return [at.x + xaxis._offset + xaxis.l2p(x), at.y + yaxis._offset + yaxis._length / 2]; }",
        [chart, x],
    )
    return found[0], found[1]


def drawn(page: Page, chart: str) -> dict[str, Any]:
    """The lines of a chart by name: x, y and style."""
    return page.evaluate(  # type: ignore[no-any-return]  # what this script gives
        "(chart) => Object.fromEntries((document.querySelector(`[data-chart='${chart}'] [data-plot]`).data ?? [])"
        ".map((each) => [each.name, { x: each.x, y: each.y, fill: each.fill ?? 'none', opacity: each.opacity ?? 1 }]))",
        chart,
    )
