"""The audit log's key and anchors are outside the store, which Ray nodes write."""

from pathlib import Path

import pytest

from backend.environment import read_environment
from backend.missing import MissingSetting


@pytest.mark.parametrize("folder", ["", "/static", "/../store/x"])
def test_a_folder_of_the_site_within_the_store_is_refused(folder: str, tmp_path: Path) -> None:
    names = ("DATABASE_URL", "BROKER_URL", "SECRET_KEY", "PUBLIC_URL", "CONTROL_URL", "RAY_URL", "RAY_TOKEN_FILE")
    variables = dict.fromkeys((f"LAMINAR_{name}" for name in (*names, "ALLOWED_HOSTS")), "x")
    store = tmp_path / "store"
    with pytest.raises(MissingSetting, match="LAMINAR_SITE_DIR: must be a folder outside of LAMINAR_STORE_DIR"):
        read_environment(variables | {"LAMINAR_STORE_DIR": str(store), "LAMINAR_SITE_DIR": f"{store}{folder}"})
    assert read_environment(variables | {"LAMINAR_STORE_DIR": str(store)}).site_dir == tmp_path / "site"
