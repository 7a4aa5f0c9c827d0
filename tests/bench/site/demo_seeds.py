"""Run the demo job with several seeds against a running `make up`, and draw the curves.

    .laminar/venv/bin/python tests/bench/site/demo_seeds.py --seeds 0 1 2 3 4 --picture seeds.svg

Prints one row a seed (held-out reward before and after, steps, seconds, staleness) and, last, one JSON object.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[3]
Series = dict[str, list[tuple[int, float]]]
COLOURS = ("#2f6fde", "#d9822b", "#2a9d6f", "#b5439a", "#6b6fd6")


def submit(client: httpx.Client, project: str, *, seed: int, schedule: str) -> str:
    spec = json.loads((ROOT / "engine/spec/templates/running_sums.json").read_text())
    spec["name"] = f"Running sums, {schedule}, seed {seed}"
    spec["training"]["seed"] = seed
    spec["schedule"]["name"] = schedule
    answer = client.post(
        "/api/v1/jobs", json={"project": project, "spec": spec}, headers={"Idempotency-Key": str(uuid.uuid4())}
    )
    answer.raise_for_status()
    return str(answer.json()["id"])


def wait(client: httpx.Client, job_id: str) -> dict[str, Any]:
    while True:
        job: dict[str, Any] = client.get(f"/api/v1/jobs/{job_id}").raise_for_status().json()
        if job["state"] in {"succeeded", "failed", "cancelled"}:
            return job
        time.sleep(1)


def all_series(client: httpx.Client, job_id: str) -> Series:
    series: dict[str, dict[int, float]] = {}
    cursor, more = 0, True
    while more:
        page = client.get(f"/api/v1/jobs/{job_id}/metrics", params={"after": cursor}).raise_for_status().json()
        for name, points in page["series"].items():
            series.setdefault(name, {}).update(dict(points))
        cursor, more = page["cursor"], page["more"]
    return {name: sorted(points.items()) for name, points in series.items()}


def run_seed(client: httpx.Client, project: str, seed: int, schedule: str) -> tuple[dict[str, Any], Series]:
    job = wait(client, submit(client, project, seed=seed, schedule=schedule))
    if job["state"] != "succeeded":
        sys.exit(f"seed {seed}: {job['id']} {job['state']}: {job['message']}")
    series = all_series(client, job["id"])
    held_out = series["evaluation/reward"]
    times = [time.mktime(time.strptime(job[key][:19], "%Y-%m-%dT%H:%M:%S")) for key in ("queued_at", "finished_at")]
    row = {
        "seed": seed,
        "schedule": schedule,
        "before": round(held_out[0][1], 3),
        "after": round(held_out[-1][1], 3),
        "gain": round(held_out[-1][1] - held_out[0][1], 3),
        "steps": job["step"],
        "seconds": round(times[1] - times[0]),
        "staleness_mean": round(statistics.mean(value for _, value in series["staleness/mean"]), 2),
        "staleness_max": max(value for _, value in series["staleness/max"]),
    }
    print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return row, series


def smooth(points: list[tuple[int, float]], width: int = 8) -> list[tuple[int, float]]:
    values = [value for _, value in points]
    return [(step, statistics.mean(values[max(0, i - width + 1) : i + 1])) for i, (step, _) in enumerate(points)]


def draw(curves: dict[int, Series], rows: list[dict[str, Any]]) -> str:
    """An SVG: reward of each step's trajectories (mean of the last 8 steps), held-out reward as dots."""
    width, height, left, bottom, top, right = 900, 420, 56, 48, 44, 170
    last = max(step for series in curves.values() for step, _ in series["reward/mean"])

    def at(step: float, value: float) -> tuple[float, float]:
        return left + step / last * (width - left - right), height - bottom - value * (height - bottom - top)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="{left}" y="24" font-size="16" fill="#1c2733">Demo job, {len(curves)} seeds: reward against steps'
        "</text>",
    ]
    for tick in (0, 0.2, 0.4, 0.6, 0.8, 1.0):
        x, y = at(0, tick)
        parts.append(f'<line x1="{x}" x2="{width - right}" y1="{y}" y2="{y}" stroke="#e3e8ee"/>')
        parts.append(f'<text x="{x - 8}" y="{y + 4}" font-size="12" text-anchor="end" fill="#5b6875">{tick:.1f}</text>')
    for step in range(0, last + 1, max(1, last // 6)):
        x, y = at(step, 0)
        parts.append(f'<text x="{x}" y="{y + 18}" font-size="12" text-anchor="middle" fill="#5b6875">{step}</text>')
    for index, row in enumerate(rows):
        colour, series = COLOURS[index % len(COLOURS)], curves[row["seed"]]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in smooth(series["reward/mean"])))
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        for step, value in series["evaluation/reward"]:
            x, y = at(step, value)
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}" stroke="#ffffff"/>')
        parts.append(
            f'<text x="{width - right + 14}" y="{top + 14 + 20 * index}" font-size="12.5" fill="{colour}">'
            f"seed {row['seed']}: {row['before']:.2f} → {row['after']:.2f}</text>"
        )
    parts.append(
        f'<text x="{left}" y="{height - 10}" font-size="12" fill="#5b6875">optimizer step · lines: sampled training '
        "reward, mean of 8 steps · dots: held-out reward before and after</text></svg>"
    )
    return "\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--schedule", choices=["laminar", "sync"], default="laminar")
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    local = json.loads((ROOT / ".laminar/local.json").read_text())
    rows, curves = [], {}
    with httpx.Client(
        base_url=local["url"], headers={"Authorization": f"Bearer {local['api_key']}"}, timeout=30
    ) as client:
        for seed in options.seeds:
            row, curves[seed] = run_seed(client, local["project"], seed, options.schedule)
            rows.append(row)
    if options.picture:
        options.picture.parent.mkdir(parents=True, exist_ok=True)
        options.picture.write_text(draw(curves, rows))
    machine = f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores"
    print(json.dumps({"bench": "demo_seeds", "machine": machine, "rows": rows}))


if __name__ == "__main__":
    main()
