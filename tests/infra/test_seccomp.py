"""The profiles of the engine's containers: Docker's defaults, and what bubblewrap needs; and who runs under them."""

import json
from pathlib import Path
from typing import Any

import yaml

from infra.seccomp.profile import BUBBLEWRAP_NEEDS, DEFAULT, PROFILE, made, resolved, written

ROOT = Path(__file__).parents[2]
APPARMOR = PROFILE.with_name("apparmor")
NAMESPACES = 0x7E020000  # all kinds of them, in the flags of clone


def rules_of(profile: dict[str, Any]) -> set[tuple[str, str]]:
    return {
        (name, json.dumps([rule["action"], rule.get("errnoRet"), rule.get("args") or []]))
        for rule in profile["syscalls"]
        for name in rule["names"]
    }


def test_the_file_is_what_is_made_of_dockers_default() -> None:
    assert PROFILE.read_text() == written(made()), "run `python -m infra.seccomp.profile`"


def test_profile_differs_from_dockers_only_for_bubblewrap() -> None:
    shipped, default = json.loads(PROFILE.read_text()), resolved(json.loads(DEFAULT.read_text()))
    assert {**shipped, "syscalls": []} == {**default, "syscalls": []}
    assert rules_of(default) < rules_of(shipped)
    beyond = rules_of(shipped) - rules_of(default)
    assert beyond == rules_of({"syscalls": BUBBLEWRAP_NEEDS})
    assert sorted(name for name, _ in beyond) == ["clone", "mount", "pivot_root", "umount2", "unshare"]


def test_capability_rules_match_dockers_default() -> None:
    default = resolved(json.loads(DEFAULT.read_text()))
    names = {name for rule in default["syscalls"] for name in rule["names"] if rule["action"] == "SCMP_ACT_ALLOW"}
    assert not names & {"mount", "umount2", "unshare", "setns", "bpf", "fsopen", "sethostname", "reboot", "chroot"}
    [clone] = [rule for rule in default["syscalls"] if rule["names"] == ["clone"]]
    assert clone["args"] == [{"index": 0, "value": NAMESPACES, "op": "SCMP_CMP_MASKED_EQ"}]
    [clone3] = [rule for rule in default["syscalls"] if rule["names"] == ["clone3"]]
    assert (clone3["action"], clone3["errnoRet"]) == ("SCMP_ACT_ERRNO", 38)  # callers fall back to clone


def test_no_condition_is_left_that_containerd_would_not_see() -> None:
    for rule in json.loads(PROFILE.read_text())["syscalls"]:
        assert set(rule) <= {"names", "action", "args", "errnoRet"}


def test_ray_runs_under_it_in_compose_and_nothing_else_does() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    confined = {name: service["security_opt"] for name, service in services.items() if "security_opt" in service}
    profiles = [f"seccomp=./{PROFILE.relative_to(ROOT)}", "apparmor=${LAMINAR_APPARMOR:-docker-default}"]
    assert confined == {"ray-head": profiles, "ray-worker": profiles}
    for name in confined:
        assert services[name]["command"][:4] == ["python", "-m", "engine.node", "--"]
    for service in services.values():
        assert not service.keys() & {"privileged", "cap_add", "userns_mode", "pid"}


def test_apparmor_profile_denies_dockers_list_but_mounts() -> None:
    text = APPARMOR.read_text()
    allowed = {line.strip() for line in text.splitlines() if line.strip().endswith(",") and "deny" not in line}
    assert {"mount,", "umount,", "pivot_root,", "abi <abi/3.0>,"} <= allowed
    assert "profile laminar-engine " in text
    denied = [line.split("deny ")[1] for line in text.splitlines() if line.strip().startswith("deny ")]
    assert len(denied) == 14 and {"@{PROC}/sysrq-trigger rwklx,", "/sys/kernel/security/** rwklx,"} <= set(denied)
    assert not any("mount" in each for each in denied)
