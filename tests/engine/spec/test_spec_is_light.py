"""The control plane imports the spec, and so must not import what the engine runs on."""

import subprocess
import sys

HEAVY = ("torch", "ray", "numpy", "transformers", "tokenizers", "safetensors", "asyncio", "httpx", "django")


def test_the_spec_brings_nothing_heavy_along() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "import engine.spec.job, engine.spec.facts, engine.spec.control\n"
        f"print(sorted(set({HEAVY!r}) & (set(sys.modules) - before)))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    # pydantic itself looks at asyncio-free modules only; whatever appears here came through the spec.
    assert loaded.strip() == "[]"


def test_the_brains_bring_neither_ray_nor_torch() -> None:
    code = (
        "import sys, engine.sim.scenario\n"
        "print([name for name in ('torch', 'ray', 'numpy', 'asyncio') if name in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"
