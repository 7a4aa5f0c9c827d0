"""The table of shared memory in OPERATING.md is the engine's own arithmetic."""

import math
import re

from engine.spec.fit.hosts import relay_bytes, segment_bytes, version_bytes
from engine.spec.fit.known_models import KNOWN_CONFIGS, known_shape
from tests.infra.containers.compose_file import ROOT

ROW = re.compile(r"^\| (\S+) \| ([\d.]+) GB \| (\d+)gb \|$", re.MULTILINE)


def test_the_table_says_what_a_job_of_each_known_model_holds_in_shared_memory() -> None:
    rows = ROW.findall((ROOT / "infra/OPERATING.md").read_text())
    told = {name: (gigabytes, limit) for name, gigabytes, limit in rows}
    (object_store,) = re.findall(r"^LAMINAR_RAY_OBJECT_STORE=(\d+)$", (ROOT / ".env.example").read_text(), re.MULTILINE)
    assert told.keys() == KNOWN_CONFIGS.keys()
    for name, (gigabytes, limit) in told.items():
        shape = known_shape(name)
        version = version_bytes(shape, 0)
        needed = segment_bytes(shape, 0) + relay_bytes(shape, 0) + version // 2 + int(object_store)
        assert gigabytes == f"{version / 1e9:.1f}", name
        assert int(limit) == math.ceil(needed / 2**30), name
