"""python -m tests.verdict.blind FOLDER [--judge ANSWERS]: the pictures and their key, or answers held against it."""

import argparse
import json
import os
import secrets
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from tests.verdict.blind.choosing import choose
from tests.verdict.blind.records import KEY, digest_of, judged, opened, sealed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.verdict.blind", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--judge", type=Path, metavar="ANSWERS", help="what was answered, as {number: kind}")
    told = parser.parse_args()
    return _judge(told.folder, told.judge) if told.judge else _show(told.folder)


def _show(folder: Path) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    seed = secrets.token_hex(8)
    key = sealed(seed, choose(seed))
    (folder / KEY).write_text(key)
    test = [sys.executable, "-m", "pytest", "-q", "-m", "soak", "tests/verdict/blind/test_blind.py"]
    asked = os.environ | {"BLIND_FOLDER": str(folder.resolve())}
    done = subprocess.run([sys.executable, "-m", "infra.local.testing", "--", *test], env=asked, check=False)
    print(f"the pictures are in {folder}; the key's digest is {digest_of(key)}")
    return done.returncode


def _judge(folder: Path, answers: Path) -> int:
    results = judged(json.loads(answers.read_text()), opened((folder / KEY).read_text()))
    num_right = sum(each.is_right for each in results)
    told = {"right": num_right, "of": len(results), "each": [asdict(each) for each in results]}
    (folder / "result.json").write_text(json.dumps(told, indent=1) + "\n")
    for each in results:
        print(f"{each.number:>2}  {each.answer:16} {'right' if each.is_right else f'it was {each.kind}'}  ({each.run})")
    print(f"{num_right} of {len(results)}")
    return 0 if num_right == len(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
