"""Docker of a rehearsal's own: dockerd within the enclosure, and its client."""

import json
import re
from collections.abc import Mapping
from typing import Any

from infra.rehearse.enclosure import within
from infra.rehearse.work import Work, stage, until
from infra.setup.terminal import Refusal


def start(work: Work) -> None:
    if _is_up(work):
        return
    with stage("dockerd of its own"):
        pid_file = work.shared / "dockerd.pid"
        pid_file.unlink(missing_ok=True)
        command = [*within(work), "dockerd", "--host", f"unix://{work.socket}", "--pidfile", str(pid_file)]
        command += ["--data-root", str(work.shared / "root"), "--exec-root", str(work.shared / "exec")]
        # A file limit above this machine's hard one is refused where a container may not raise it.
        command += ["--default-ulimit", "nofile=10000:10000", "--cgroup-parent", f"/{work.control_group}"]
        work.start(command, "dockerd")
        until(lambda: "" if _is_up(work) else "no answer", within_s=120, what="dockerd")


def docker(work: Work, *arguments: str) -> str:
    return work.run([*within(work), "docker", "--host", f"unix://{work.socket}", *arguments])


def compose(work: Work, *arguments: str) -> str:
    """Called where .env lies, as an operator does: from there Compose looks for the files that COMPOSE_FILE names. What
    this shell has of the variables in there would outrank them."""
    alone = without_names_of(work.environment_file.read_text())
    there = [*alone, f"--chdir={work.project}", "docker", "--host", f"unix://{work.socket}", "compose"]
    return work.run([*within(work), *there, *arguments])


def without_names_of(environment: str) -> list[str]:
    return ["env", *(f"--unset={name}" for name in re.findall(r"^(\w+)=", environment, re.MULTILINE))]


def manage(work: Work, *arguments: str) -> str:
    return compose(work, "exec", "-T", "web", "python", "manage.py", *arguments)


def containers(work: Work) -> dict[str, Mapping[str, Any]]:
    """Service name → its container, as `docker inspect` describes it."""
    names = compose(work, "ps", "--all", "--quiet").split()
    rows = json.loads(docker(work, "inspect", *names)) if names else []
    return {row["Config"]["Labels"]["com.docker.compose.service"]: row for row in rows}


def not_ready(rows: Mapping[str, Mapping[str, Any]], wanted: set[str]) -> str:
    """Services that are not healthy, not running (without a health check) or not finished (one-time services)."""
    missing = []
    for name in sorted(wanted):
        state: Mapping[str, Any] = rows[name]["State"] if name in rows else {"Status": "not there"}
        status = state.get("Health", {}).get("Status") or state["Status"]
        is_done = state["Status"] == "exited" and state.get("ExitCode") == 0
        if status not in ("healthy", "running") and not is_done:
            missing.append(f"{name} {status}")
    return ", ".join(missing)


def versions(work: Work) -> str:
    server = docker(work, "version", "--format", "{{.Server.Version}}").strip()
    return f"Docker {server}, Compose {compose_version(work)}"


def compose_version(work: Work) -> str:
    return docker(work, "compose", "version", "--short").strip()


def _is_up(work: Work) -> bool:
    try:
        docker(work, "info")
    except Refusal:
        return False
    return True
