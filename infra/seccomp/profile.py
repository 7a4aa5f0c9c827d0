"""The profile of the engine's containers, made from Docker's default: `python -m infra.seccomp.profile`.

    docker-default.json ──for x86-64, no capability──▶ rules ──and BUBBLEWRAP_NEEDS──▶ infra/images/engine/seccomp.json

It is written in the form of the OCI runtime specification, which Docker, podman, containerd (Kubernetes) and CRI-O all
read. Docker's own form has conditions that containerd would leave out, and so allow what they guard.

Invariants:
- what it allows beyond Docker's default is `BUBBLEWRAP_NEEDS`, and the sandbox starts without none of it;
- a name space is only made along with a user name space, in which its maker owns nothing of anybody else's.
"""

import json
from pathlib import Path
from typing import Any, Final, TypeAlias

Rule: TypeAlias = dict[str, Any]

DEFAULT: Final = Path(__file__).with_name("docker-default.json")
PROFILE: Final = Path(__file__).parents[1] / "images" / "engine" / "seccomp.json"
_ARCHITECTURE: Final = "SCMP_ARCH_X86_64"  # the sandbox's own filter knows no other
_NAMES_OF_IT: Final = {"amd64"}
_CLONE_NEWUSER: Final = 0x10000000
_WITH_A_USER_NAMESPACE: Final = [
    {"index": 0, "value": _CLONE_NEWUSER, "valueTwo": _CLONE_NEWUSER, "op": "SCMP_CMP_MASKED_EQ"}
]

BUBBLEWRAP_NEEDS: Final[tuple[Rule, ...]] = (
    {"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": _WITH_A_USER_NAMESPACE},  # bubblewrap's own name spaces
    {"names": ["unshare"], "action": "SCMP_ACT_ALLOW", "args": _WITH_A_USER_NAMESPACE},  # where its /tmp is mounted
    {"names": ["mount"], "action": "SCMP_ACT_ALLOW"},
    {"names": ["umount2"], "action": "SCMP_ACT_ALLOW"},
    {"names": ["pivot_root"], "action": "SCMP_ACT_ALLOW"},
)


def made() -> dict[str, Any]:
    default = json.loads(DEFAULT.read_text())
    return {**resolved(default), "syscalls": [*resolved(default)["syscalls"], *BUBBLEWRAP_NEEDS]}


def resolved(profile: dict[str, Any]) -> dict[str, Any]:
    """Docker's form without its conditions, as Docker resolves them for a container that has no capability."""
    [own] = [each for each in profile["archMap"] if each["architecture"] == _ARCHITECTURE]
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "architectures": [_ARCHITECTURE, *own["subArchitectures"]],
        "syscalls": [_unconditional(rule) for rule in profile["syscalls"] if _holds(rule)],
    }


def written(profile: dict[str, Any]) -> str:
    return json.dumps(profile, indent=1) + "\n"


def _holds(rule: Rule) -> bool:
    """Whether a rule applies. `minKernel` is met by every kernel: its highest value is 4.8, of 2016."""
    includes, excludes = rule.get("includes", {}), rule.get("excludes", {})
    is_of_others = "arches" in includes and not _NAMES_OF_IT & set(includes["arches"])
    return not is_of_others and not includes.get("caps") and not _NAMES_OF_IT & set(excludes.get("arches", ()))


def _unconditional(rule: Rule) -> Rule:
    return {name: value for name, value in rule.items() if name in ("names", "action", "errnoRet", "args")}


if __name__ == "__main__":
    PROFILE.write_text(written(made()))
