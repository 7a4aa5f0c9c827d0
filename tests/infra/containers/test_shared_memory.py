"""Limits of shared memory in the manifests and in OPERATING.md's table cover what the engine computes as its need."""

import re

import pytest
import yaml

from engine.fit.hosts import version_bytes
from engine.fit.known_models import KNOWN_CONFIGS, known_shape
from engine.fit.shared_memory import OBJECT_STORE_BYTES, shared_memory_need, size_setting
from tests.infra.containers.compose_file import ROOT, services

ROW = re.compile(r"^\| (\S+) \| ([\d.]+) GB \| (\d+gb) \|$", re.MULTILINE)


def needed_bytes(model: str, object_store_bytes: int) -> int:
    return shared_memory_need(version_bytes(known_shape(model), 0), object_store_bytes=object_store_bytes).num_bytes


def test_the_operators_table_is_the_engines_arithmetic() -> None:
    rows = ROW.findall((ROOT / "infra/OPERATING.md").read_text())
    assert rows == [
        (
            model,
            f"{version_bytes(known_shape(model), 0) / 1e9:.1f}",
            size_setting(needed_bytes(model, OBJECT_STORE_BYTES)),
        )
        for model in KNOWN_CONFIGS
    ]


def test_compose_holds_the_smallest_model_by_default() -> None:
    for name in ("ray-head", "ray-worker"):
        service = services()[name]
        [store] = [word for word in service["command"] if word.startswith("--object-store-memory=")]
        needed = needed_bytes("Qwen3-0.6B", int(store.partition("=")[2]))
        assert int(service["shm_size"].removesuffix("gb")) * 2**30 >= needed


@pytest.mark.parametrize(("group", "model"), [("cpu", "Qwen3-1.7B"), ("h100", "Qwen3-32B")])
def test_groups_of_kuberay_hold_the_model_they_name(group: str, model: str) -> None:
    cluster = yaml.safe_load((ROOT / "infra/kuberay/raycluster.yaml").read_text())
    [spec] = [each for each in cluster["spec"]["workerGroupSpecs"] if each["groupName"] == group]
    [volume] = [each for each in spec["template"]["spec"]["volumes"] if each["name"] == "shm"]
    [container] = spec["template"]["spec"]["containers"]
    shared = int(volume["emptyDir"]["sizeLimit"].removesuffix("Gi")) * 2**30
    assert shared >= needed_bytes(model, int(spec["rayStartParams"]["object-store-memory"]))
    assert shared < int(container["resources"]["limits"]["memory"].removesuffix("Gi")) * 2**30
