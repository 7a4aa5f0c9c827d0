"""`python -m engine replay-step FOLDER`: trains a recorded step again and compares the results bit for bit.

A step is recorded by `python -m engine run SPEC.json --out DIR --record-step N`, into DIR/recordings/step-N.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path


def replay_step(words: Sequence[str]) -> int:
    """`words`: the arguments after `python -m engine replay-step`. Returns 0: equal; 1: diverges; 2: wrong input."""
    parser = argparse.ArgumentParser(prog="python -m engine replay-step", description=__doc__)
    parser.add_argument("folder", type=Path, help="the recording")
    parser.add_argument("--model", type=Path, default=None, help="the folder of the job's model, if it has moved")
    arguments = parser.parse_args(words)
    try:
        return _replay(arguments.folder.resolve(), arguments.model)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 2


def _replay(folder: Path, model: Path | None) -> int:
    from engine.training.replay.again import train_again  # torch is imported here, not by every command
    from engine.training.replay.comparison import changed_input, compare
    from engine.training.replay.record import Machine, read_record

    record = read_record(folder)
    comparison = changed_input(folder, record)
    differences = list[str]()
    if comparison.is_the_same:
        with tempfile.TemporaryDirectory(prefix="laminar-step-", dir=folder) as again:
            train_again(folder, record, Path(again), model=model)
            comparison = compare(folder, Path(again), record)
        differences = record.machine.differences(Machine.here())
        differences += [f"no deterministic kernel for {each}" for each in record.not_deterministic]
    if comparison.is_the_same:
        _say(f"step {record.step}: bit for bit the same, {comparison.num_tensors} tensors")
        return 0
    _say(f"step {record.step} diverges first in {comparison.diverging}: {comparison.how}")
    if differences:
        _say(f"equal bits cannot be expected: {'; '.join(differences)}")
    return 1


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
