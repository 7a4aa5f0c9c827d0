"""Data's one process under the traffic of many replicas: tokens a second of one core, memory, bytes of the log.

    replicas' brains ──messages, pickled──▶ data: unpickle, brain, log ──▶ messages, pickled

Brains, messages and log are the engine's own, in one process and without Ray; only what belongs to data is counted, in
CPU seconds of its thread. Two measurements, since a token costs data twice: while its sample grows it is sent as
progress, and when the sample ends it is logged and sent to the trainer. Samples begin in all stages of their growth, as
in a run that has lasted for long.
"""

import argparse
import cProfile
import pstats
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from engine.scorecard.tables import Row, rounded
from tests.bench.engine.data.traffic import Traffic
from tests.bench.engine.report import Report

# The tokens that one of many sequences on a GPU decodes in a second.
TOKENS_A_SECOND: Final = 30
SHOWN: Final = 15


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--replicas", type=int, default=256)
    parser.add_argument("--samples", type=int, default=4, help="of each replica that grow side by side, one group")
    parser.add_argument("--length", type=int, default=8_192, help="tokens of a whole sample")
    parser.add_argument("--rounds", type=int, default=8, help="seconds of growth")
    parser.add_argument("--ended", type=int, default=6_000, help="samples that end, of --ended-length tokens")
    parser.add_argument("--ended-length", type=int, default=512)
    parser.add_argument("--profile", action="store_true", help="the functions that take most of data's time")


def measure(arguments: argparse.Namespace) -> Report:
    profile = cProfile.Profile() if arguments.profile else None
    with tempfile.TemporaryDirectory() as folder, profile or nullcontext():
        growing = _growing(arguments, Path(folder, "growing"))
        ending = _ending(arguments, Path(folder, "ending"))
    rows = [*_rows("progress", growing), *_rows("ended", ending)]
    both = 1 / (1 / growing.tokens_per_s + 1 / ending.tokens_per_s)
    rows.append({"traffic": "both", "part": "all", "tokens_per_cpu_s": rounded(both)})
    remarks = [
        f"progress: {arguments.replicas:,} replicas with {arguments.samples:,} samples each, growing to "
        f"{arguments.length:,} tokens, {TOKENS_A_SECOND} in each of {arguments.rounds} seconds",
        f"ended: {arguments.ended:,} samples of {arguments.ended_length:,} tokens, trained and checkpointed",
        "both: every token is progress once and ends once; above it one core is saturated",
        f"longest: of data's thread, for one message or one turn of its log; {growing.memory_bytes / 1e6:,.0f} MB held "
        f"for {growing.tokens_held:,} tokens of progress",
    ]
    return Report(bench="data", rows=rows, remarks=[*remarks, *(_profile_lines(profile) if profile else ())])


def _growing(arguments: argparse.Namespace, folder: Path) -> Traffic:
    """Measures rounds of progress only: no sample ends."""
    traffic = Traffic(
        folder=folder,
        num_replicas=arguments.replicas,
        num_samples=arguments.samples,
        length=arguments.length,
        streams=True,
    )
    traffic.begin()
    for _ in range(2):  # samples that have run for a second are sent for the first time, and whole
        traffic.round(TOKENS_A_SECOND)
    traffic.count_anew()
    for _ in range(arguments.rounds):
        traffic.round(TOKENS_A_SECOND)
    return traffic


def _ending(arguments: argparse.Namespace, folder: Path) -> Traffic:
    traffic = Traffic(
        folder=folder,
        num_replicas=arguments.replicas,
        num_samples=max(1, arguments.ended // (4 * arguments.replicas)),
        length=arguments.ended_length,
        streams=False,
    )
    traffic.begin()
    while traffic.num_ended < arguments.ended:
        traffic.round(arguments.ended_length // 2)
    traffic.close()
    return traffic


def _rows(name: str, traffic: Traffic) -> Iterator[Row]:
    for part, seconds in traffic.seconds.items():
        yield {"traffic": name, "part": part, "ns_per_token": rounded(1e9 * seconds / traffic.tokens)}
    yield {
        "traffic": name,
        "part": "all",
        "ns_per_token": rounded(1e9 * sum(traffic.seconds.values()) / traffic.tokens),
        "tokens_per_cpu_s": rounded(traffic.tokens_per_s),
        "sent_bytes_per_token": rounded(traffic.bytes_received / traffic.tokens),
        "log_bytes_per_token": rounded(traffic.log_bytes / traffic.tokens),
        "longest_ms": rounded(1e3 * traffic.longest_s),
    }


def _profile_lines(profile: cProfile.Profile) -> Iterator[str]:
    """The top functions; the replicas' share is included, under its module's name."""
    found = pstats.Stats(profile).get_stats_profile().func_profiles
    most = sorted(found.items(), key=lambda each: -each[1].tottime)[:SHOWN]
    for function, each in most:
        where = f"{Path(each.file_name).name}:{each.line_number}"
        yield f"{each.tottime:.2f} s in {each.ncalls} calls of {function} ({where})"
