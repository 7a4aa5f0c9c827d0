"""python -m tests.gallery FOLDER [NAME …]: takes screenshots of every page in every state: light, dark, on a phone."""

import argparse
import os
import subprocess
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gallery", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the pictures and index.html are written")
    parser.add_argument("names", nargs="*", help="only entries whose name begins so")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    test = [sys.executable, "-m", "pytest", "-q", "-m", "soak", "tests/gallery/test_gallery.py"]
    told = os.environ | {"GALLERY_FOLDER": str(folder), "GALLERY_NAMES": " ".join(arguments.names)}
    done = subprocess.run([sys.executable, "-m", "infra.local.testing", "--", *test], env=told, check=False)
    print(f"the pictures are in {folder / 'index.html'}")
    return done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
