"""Seconds of a checkpoint that ranks write together, and of resuming from it, at Qwen3-0.6B's width.

    copy      the state of a rank into ready memory, by one call: the least pause of training
    stall     `prepare_save`, the actual pause; for the first one a thread has faulted in the pages of the memory before
    disk      as many bytes as the checkpoint has, written into plain files by the same ranks, and synced
    write     the call in parallel with training: every file, hashed, synced and read back
    restore   on one, two and four ranks: every file verified, every rank's own part read

Ranks are processes of this machine, with FSDP2 on gloo; each figure is the slowest rank's. Weights and moments are
random; nothing is trained.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

import torch
from torch import Tensor

from engine.models.decoder import Decoder, DecoderConfig
from engine.models.loading import model_tensors, save_weights
from engine.scorecard.tables import Row, Spread, rounded
from engine.training.checkpoint.staging import Staging
from tests.bench.engine.report import Report

WAIT_S: Final = 900.0

# Qwen3-0.6B's, but for the number of layers.
CONFIG: Final[dict[str, Any]] = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151_936,
    "hidden_size": 1_024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3_072,
    "max_position_embeddings": 1_024,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2, help="that write")
    parser.add_argument("--restore", type=int, nargs="+", default=[1, 2, 4], help="ranks that resume")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="the first copy faults in its pages itself")
    parser.add_argument("--mapped", action="store_true", help="as if memory is short: the copy in a mapped file")
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure; default: a temporary one")


def measure(arguments: argparse.Namespace) -> Report:
    place = Path(tempfile.mkdtemp(prefix="bench-checkpoint-", dir=arguments.folder))
    try:
        model = place / "model"
        _make_model(model, num_layers=arguments.layers)
        rows = _saving(model, place, arguments)
        for num_ranks in arguments.restore:
            rows += _restoring(model, place, num_ranks, arguments.repeats)
    finally:
        shutil.rmtree(place)
    remarks = [f"Qwen3-0.6B's width and vocabulary, {arguments.layers} layers; written by {arguments.ranks} ranks"]
    return Report(bench="checkpoint", rows=rows, remarks=remarks)


def _saving(model: Path, place: Path, arguments: argparse.Namespace) -> list[Row]:
    reports = _ranks(arguments.ranks, partial(_save, model, place / "step", arguments))
    num_bytes = sum(each["checkpoint_bytes"] for each in reports)
    grown = max(each["grown_bytes"] for each in reports)
    rows: list[Row] = [
        {
            "what": "memory of a rank for it" + (", without the file" if reports[0]["is_mapped"] else ""),
            "gb": rounded(grown / 1e9),
            "bytes_a_parameter": rounded(grown / reports[0]["num_parameters"]),
        }
    ]
    for what, size in (
        ("copy", sum(each["state_bytes"] for each in reports)),
        ("first stall", sum(each["state_bytes"] for each in reports)),
        ("stall", sum(each["state_bytes"] for each in reports)),
        ("disk", num_bytes),
        ("write", num_bytes),
    ):
        rows.append(_row(what, size, [max(each) for each in zip(*(one[what] for one in reports), strict=True)]))
    return rows


def _restoring(model: Path, place: Path, num_ranks: int, repeats: int) -> list[Row]:
    reports = _ranks(num_ranks, partial(_restore, model, place / "step", repeats))
    seconds = [max(each) for each in zip(*(one["restore"] for one in reports), strict=True)]
    return [_row(f"restore on {num_ranks}", reports[0]["checkpoint_bytes"], seconds)]


def _row(what: str, num_bytes: int, seconds: Sequence[float]) -> Row:
    spread = Spread.of(seconds)
    return {
        "what": what,
        "gb": rounded(num_bytes / 1e9),
        **spread.columns("seconds"),
        "gb_per_s": rounded(num_bytes / 1e9 / spread.median),
    }


# Ranks ---------------------------------------------------------------------------------------------------------------


def _ranks(num_ranks: int, act: Callable[[Any], dict[str, Any]]) -> list[dict[str, Any]]:
    """The results of each rank, run in separate processes."""
    context = multiprocessing.get_context("spawn")
    addresses, results = context.Queue(), context.Queue()
    ranks = [
        context.Process(target=_be_a_rank, args=(rank, num_ranks, addresses, results, act)) for rank in range(num_ranks)
    ]
    for rank in ranks:
        rank.start()
    reports = [results.get(timeout=WAIT_S) for _ in ranks]
    for rank in ranks:
        rank.join()
    return reports


def _be_a_rank(rank: int, num_ranks: int, addresses: Any, results: Any, act: Callable[[Any], dict[str, Any]]) -> None:
    from engine.training.ranks.world import World

    torch.set_num_threads(1)
    if rank:
        world = World.join(addresses.get(timeout=WAIT_S), rank=rank, num_ranks=num_ranks)
    else:
        world = World.open(num_ranks=num_ranks, host="127.0.0.1")
        for _ in range(num_ranks - 1):
            addresses.put(world.address)
    results.put(act(world))


def _save(model: Path, folder: Path, arguments: argparse.Namespace, world: Any) -> dict[str, Any]:
    trainer = _trainer(model, world)
    if arguments.mapped:
        trainer._saver._staging = Staging(torch.device("cpu"), spare=_none)
    live = [
        share.values
        for part in trainer._sharding.parts
        for kind in part.written().kinds.values()
        for share in kind.values()
    ]
    for values in live:
        values.normal_()
    before = _own_bytes()
    report: dict[str, Any] = {what: [] for what in ("copy", "first stall", "stall", "disk", "write")}
    if not arguments.cold:
        trainer.get_ready_to_save()
        trainer._saver.wait_until_ready()
    report["first stall"].append(_together(world, partial(trainer.prepare_save, folder)))
    acts: list[Callable[[], object]] = []
    for _ in range(arguments.repeats):
        report["stall"].append(_together(world, lambda: acts.append(trainer.prepare_save(folder))))
        with _peak() as peak:
            report["write"].append(_together(world, acts.pop()))
        report["grown_bytes"] = max(peak) - before
        own = list(folder.glob(f"*-{world.index + 1:05d}-of-*")) or list(folder.glob("*.safetensors"))
        report["disk"].append(_together(world, partial(_plain_write, own, folder.parent / f"plain-{world.index}")))
        report["checkpoint_bytes"] = sum(file.stat().st_size for file in own)
        report["copy"].append(_together(world, partial(_copy, live, trainer._saver._staging._memory)))
    report |= {"state_bytes": sum(values.nbytes for values in live), "num_parameters": trainer.num_parameters}
    report["is_mapped"] = trainer._saver._staging.is_mapped
    trainer.close()
    return report


def _restore(model: Path, folder: Path, repeats: int, world: Any) -> dict[str, Any]:
    trainer = _trainer(model, world)
    seconds = [_together(world, partial(trainer.load, folder)) for _ in range(repeats)]
    trainer.close()
    num_bytes = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return {"restore": seconds, "checkpoint_bytes": num_bytes}


def _together(world: Any, act: Callable[[], object]) -> float:
    world.exchange(b"ready")
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def _trainer(model: Path, world: Any) -> Any:
    from engine.spec.job import AlgorithmSpec, OptimizerSpec, TrainerSpec
    from engine.training.factory import build_trainer
    from engine.training.settings import TrainerSettings

    settings = TrainerSettings(
        optimizer=OptimizerSpec(),
        algorithm=AlgorithmSpec(),
        trainer=TrainerSpec(),
        num_steps=1,
        temperature=1.0,
        max_new_tokens=1,
        seed=0,
    )
    return build_trainer(model, settings, device="cpu", world=world)


def _plain_write(files: Sequence[Path], into: Path) -> None:
    """Writes as many bytes as these files have with plain system calls."""
    block = os.urandom(1 << 24)
    with into.open("wb") as stream:
        for left in range(sum(file.stat().st_size for file in files), 0, -len(block)):
            stream.write(block[:left])
        stream.flush()
        os.fsync(stream.fileno())
    into.unlink()


def _copy(live: Sequence[Tensor], ready: Tensor) -> None:
    """Copies one tensor after the other."""
    begin = 0
    for values in live:
        ready[begin : begin + values.nbytes].copy_(values.view(torch.uint8))
        begin += values.nbytes


def _none(*, num_sharing: int) -> int:
    return 0


@contextmanager
def _peak() -> Iterator[list[int]]:
    """Samples memory every few milliseconds."""
    seen, is_over = [_own_bytes()], Event()

    def look() -> None:
        while not is_over.wait(0.005):
            seen.append(_own_bytes())

    looker = Thread(target=look)
    looker.start()
    try:
        yield seen
    finally:
        is_over.set()
        looker.join()


def _own_bytes() -> int:
    """This process's anonymous memory, without mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def _make_model(folder: Path, *, num_layers: int) -> None:
    from engine.models.loading import WEIGHTS_FILE, read_config

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": num_layers}))
    config: DecoderConfig = read_config(folder)
    model = Decoder(config, config.dtype)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    save_weights(model_tensors(model), folder / WEIGHTS_FILE)
