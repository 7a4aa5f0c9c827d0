"""Manifests and scripts that start a Ray: KubeRay's are read by Ray's own autoscaler, Slurm's run on stubs of its
commands. There is neither a Kubernetes nor a Slurm here."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import (
    _derive_autoscaling_config_from_ray_cr as as_the_autoscaler_reads,
)

from engine.spec.control import PoolTerms
from engine.spec.labels import is_chosen
from infra.local.services.ray_head import PASSED_ON

ROOT = Path(__file__).parents[2]
KUBERAY, SBATCH = ROOT / "infra" / "kuberay", ROOT / "infra" / "slurm" / "ray.sbatch"
GI = 2**30


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((KUBERAY / name).read_text()))


CLUSTER = documents("raycluster.yaml")[0]
GROUPS = {"head": CLUSTER["spec"]["headGroupSpec"]} | {
    group["groupName"]: group for group in CLUSTER["spec"]["workerGroupSpecs"]
}


def pod(group: str) -> dict[str, Any]:
    found: dict[str, Any] = GROUPS[group]["template"]["spec"]
    return found


def container(group: str) -> dict[str, Any]:
    """The first is Ray's; KubeRay knows no other."""
    found: dict[str, Any] = pod(group)["containers"][0]
    return found


def in_bytes(quantity: str) -> int:
    return int(quantity.removesuffix("Gi").removesuffix("Ti")) * GI * (1024 if quantity.endswith("Ti") else 1)


def test_rays_own_autoscaler_reads_hosts_limits_and_labels() -> None:
    kinds = as_the_autoscaler_reads(json.loads(json.dumps(CLUSTER)))["available_node_types"]
    assert {name: (kind["min_workers"], kind["max_workers"]) for name, kind in kinds.items()} == {
        "headgroup": (0, 0),
        "cpu": (1, 4),
        "h100": (0, 4),
    }
    assert {name: (kind["resources"]["CPU"], kind["resources"].get("GPU", 0)) for name, kind in kinds.items()} == {
        "headgroup": (0, 0),
        "cpu": (16, 0),
        "h100": (96, 8),
    }
    labels = {name: kind["labels"] for name, kind in kinds.items()}
    for pool in ("cpu", "h100"):
        terms = PoolTerms(labels={"laminar/group": pool})
        assert [name for name, of_kind in labels.items() if is_chosen(of_kind, terms.labels)] == [pool]


@pytest.mark.parametrize("group", GROUPS)
def test_every_pod_is_confined_and_holds_rays_object_store(group: str) -> None:
    assert pod(group)["securityContext"]["runAsNonRoot"] is True
    assert pod(group)["securityContext"]["seccompProfile"]["type"] == "Localhost"
    assert container(group)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    volumes = {volume["name"]: volume for volume in pod(group)["volumes"]}
    assert {mount["name"] for mount in container(group)["volumeMounts"]} == set(volumes)
    shared = volumes["shm"]["emptyDir"]
    assert shared["medium"] == "Memory"
    store_bytes = int(GROUPS[group]["rayStartParams"]["object-store-memory"])
    resources = container(group)["resources"]
    assert store_bytes < in_bytes(shared["sizeLimit"]) < in_bytes(resources["limits"]["memory"])
    assert resources["limits"]["memory"] == resources["requests"]["memory"], (
        "memory that is lent is taken back by killing"
    )


# Settings of bucket, logs and traces that nodes of `make up` and of the containers get; the keys come separately.
SETTINGS = {*PASSED_ON, "AWS_DEFAULT_REGION"}
KEYS = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}


@pytest.mark.parametrize("group", GROUPS)
def test_pods_get_all_settings_and_keys_from_a_secret(group: str) -> None:
    settings, keys = container(group)["envFrom"]
    [told] = documents("settings.yaml")
    assert settings == {"configMapRef": {"name": told["metadata"]["name"]}}
    assert told["metadata"]["namespace"] == CLUSTER["metadata"]["namespace"]
    assert set(told["data"]) == SETTINGS and all(isinstance(value, str) for value in told["data"].values())
    assert keys == {"secretRef": {"name": "laminar-bucket", "optional": True}}
    readme = (KUBERAY / "README.md").read_text()
    assert f"secret generic {keys['secretRef']['name']} " in readme and all(key in readme for key in KEYS)
    assert not {each["name"] for each in container(group)["env"]} & (SETTINGS | KEYS), "one place for each"


@pytest.mark.parametrize("group", GROUPS)
def test_node_labels_its_sandbox_and_runs_kuberays_command(group: str) -> None:
    """With a stub for the trials: the command is the manifest's, with what KubeRay puts into the environment."""
    assert CLUSTER["metadata"]["annotations"]["ray.io/overwrite-container-cmd"] == "true"
    python, *words = container(group)["command"]
    assert words[:3] == ["-m", "engine.node", "--"]
    stand_ins = "node.sandbox_here = node.vllm_here = lambda: 'tried'"
    begun = f"from engine import node; {stand_ins}; node.main({words[2:]!r})"
    generated = (
        'python -c \'import os, sys; print(os.environ["RAY_OVERRIDE_LABELS"], sys.argv[1])\' "--labels=a=b, c=d"'
    )
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = os.environ | {"KUBERAY_GEN_RAY_START_CMD": generated, "PATH": path}
    done = subprocess.run([sys.executable, "-c", begun], cwd=ROOT, capture_output=True, text=True, env=environment)
    labels = {"laminar/sandbox": "tried", "laminar/vllm": "tried"}
    assert python == "python" and done.stdout.strip() == f"{json.dumps(labels)} --labels=a=b, c=d", done.stderr


def test_pods_with_user_code_have_no_kubernetes_token() -> None:
    for group in ("cpu", "h100"):
        assert pod(group)["automountServiceAccountToken"] is False
    assert CLUSTER["spec"]["authOptions"] == {"mode": "token"}
    for group in GROUPS:
        assert not [each for each in container(group)["env"] if "TOKEN" in each["name"]]
    assert not [text for text in KUBERAY.glob("*.yaml") if "kind: Secret" in text.read_text()]


def test_the_jobs_api_is_reached_from_the_control_plane_only() -> None:
    service, policy = documents("network.yaml")
    assert service["spec"]["type"] == "ClusterIP"
    selector = policy["spec"]["podSelector"]["matchLabels"]
    for group in GROUPS:
        assert selector.items() <= GROUPS[group]["template"]["metadata"]["labels"].items(), group
    own, control = policy["spec"]["ingress"]
    assert own == {"from": [{"podSelector": {"matchLabels": selector}}]}
    assert control["ports"] == [{"protocol": "TCP", "port": 8265}]
    assert set(control["from"][0]) == {"namespaceSelector", "podSelector"}, "both, in one entry"
    blocks = [to["ipBlock"] for rule in policy["spec"]["egress"] for to in rule["to"] if "ipBlock" in to]
    assert blocks and all("169.254.0.0/16" in block["except"] for block in blocks)


# An srun runs as long as the commands it started: this stub runs until all three have started.
STAND_INS = {
    "scontrol": 'printf "first\\nsecond\\nthird\\n"',
    "srun": """for word; do case $word in --export=ALL|--no*|--nt*) shift;; *) break;; esac; done
if [ "$1" = hostname ]; then echo 10.0.0.7 fe80::1; exit; fi
echo "$*" >> "$STARTED"
env >> "$STARTED.told"
until [ "$(wc -l < "$STARTED")" -ge 3 ]; do sleep 0.02; done""",
}


def test_slurm_starts_head_and_workers_and_shows_no_token(tmp_path: Path) -> None:
    for name, script in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{script}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "token").write_text("very-secret")
    told = [f"{name}={name}-given" for name in sorted(SETTINGS | KEYS | {"AWS_CA_BUNDLE"})]
    (tmp_path / "settings").write_text("\n".join(told))
    environment = {
        "PATH": f"{tmp_path}:/usr/bin:/bin", "STARTED": f"{tmp_path}/started", "SLURM_JOB_NODELIST": "n[1-3]",
        "LAMINAR_HOME": str(ROOT), "LAMINAR_STORE_DIR": "/store", "RAY_AUTH_TOKEN_PATH": f"{tmp_path}/token",
        "LAMINAR_RAY_SETTINGS": f"{tmp_path}/settings",
        "LAMINAR_RAY_LABELS": "accelerator=H100", "SLURM_CPUS_PER_TASK": "32", "SLURM_GPUS_ON_NODE": "8",
    }  # fmt: skip
    done = subprocess.run(["bash", str(SBATCH)], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    started = (tmp_path / "started").read_text()
    head, *workers = sorted(started.splitlines(), key=lambda line: "--head" not in line)
    same = "--num-cpus=32 --num-gpus=8 --labels=accelerator=H100"
    assert all(" -m engine.node -- " in line for line in (head, *workers)), "each node reports whether it has a sandbox"
    assert same in head and "--port=6379 --dashboard-host=10.0.0.7 --dashboard-port=8265" in head
    assert len(workers) == 2 and all(f"{same} --address=10.0.0.7:6379" in line for line in workers)
    assert "the address of the pool: http://10.0.0.7:8265" in done.stdout
    assert "very-secret" not in started + done.stdout + done.stderr
    lines = (tmp_path / "started.told").read_text().splitlines()
    assert all(lines.count(line) == 3 for line in told), "each node has each setting"
    assert "-given" not in started + done.stdout + done.stderr, "and none is a word of a command"
    assert all(line.partition("=")[0] in SBATCH.read_text() for line in told)


def test_slurms_script_says_what_it_lacks() -> None:
    done = subprocess.run(["bash", str(SBATCH)], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True)
    assert done.returncode != 0 and "LAMINAR_HOME" in done.stderr


def test_systemd_keeps_the_ray_that_the_document_starts_by_hand(tmp_path: Path) -> None:
    document = (ROOT / "infra" / "OPERATING.md").read_text()
    [unit] = re.findall(r"\n    \[Unit\]\n(?:    .*\n|\n)*?(?=\nthen `systemctl)", document)
    said = dict(re.findall(r"^    (\w+)=(.*)$", unit, re.MULTILINE))
    started = said["ExecStart"].replace("--block ", "").partition("/bin/python ")[2]
    [by_hand] = re.findall(r"^    RAY_AUTH_MODE=token .*$", document, re.MULTILINE)
    assert by_hand.endswith(f"python {started}")
    told = {
        name
        for line in re.findall(r"^    Environment=(.*)$", unit, re.MULTILINE)
        for name in re.findall(r"(\w+)=", line)
    }
    assert told == set(re.findall(r"(\w+)=\S+", by_hand.partition(" python ")[0]))
    assert "--block" in said["ExecStart"] and said["Restart"] == "always", "what ends begins again"
