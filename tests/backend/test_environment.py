"""The control plane's environment, read once."""

import os

import pytest

from backend.environment import RENAMED, MissingSetting, read_environment


def test_what_is_not_set_is_named() -> None:
    with pytest.raises(MissingSetting, match="LAMINAR_SECRET_KEY"):
        read_environment({})


@pytest.mark.parametrize("former", RENAMED)
def test_a_former_name_is_refused_with_its_successor(former: str) -> None:
    values = {name: value for name, value in os.environ.items() if name.startswith("LAMINAR_")}
    read_environment(values)
    with pytest.raises(MissingSetting, match=rf"{former} is called {RENAMED[former]} now"):
        read_environment(values | {former: "0"})
