"""The control plane imports the spec, so the spec must not import the engine's heavy libraries."""

import subprocess
import sys

HEAVY = ("torch", "ray", "numpy", "transformers", "tokenizers", "safetensors", "asyncio", "httpx", "django")


def test_spec_imports_nothing_heavy() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "import engine.spec.job, engine.spec.facts, engine.spec.control\n"
        f"print(sorted(set({HEAVY!r}) & (set(sys.modules) - before)))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    # pydantic imports none of these, so any that appear here came through the spec.
    assert loaded.strip() == "[]"


def test_brains_import_neither_ray_nor_torch() -> None:
    code = (
        "import sys, engine.sim.scenario\n"
        "print([name for name in ('torch', 'ray', 'numpy', 'asyncio') if name in sys.modules])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"
