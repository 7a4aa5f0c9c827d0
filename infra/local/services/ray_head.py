"""A local Ray on 127.0.0.1 with token authentication, reached by short paths without spaces."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from engine.spec.node_variables import NODE_VARIABLES
from infra.local.home import Home, shell_variables
from infra.local.services.http_health import responds

# Actors ask for fractions of a CPU. More CPUs than the machine has let several small jobs share it, slowly.
NUM_CPUS = 8
PASSED_ON = tuple(name for name, variable in NODE_VARIABLES.items() if variable.when_unset)  # where set
NICENESS = "RAY_worker_niceness"
"""The niceness of jobs, if set. Ray's default is 15: jobs yield to the site and to everything else on the machine."""
OBJECT_STORE_BYTES = 300 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class RayHead:
    home: Home
    dashboard_port: int
    gcs_port: int
    client_port: int
    agent_port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.dashboard_port}"

    @property
    def token_file(self) -> Path:
        return self.home.secrets_folder / "ray"

    def prepare(self) -> None:
        self.home.prepare_alias()  # each time: a cleaner of temporary folders may have taken the alias
        self.home.secret("ray")
        self.home.forget_ray_sessions()

    def command(self) -> list[str]:
        options = {
            "node-ip-address": "127.0.0.1",
            "port": self.gcs_port,
            "dashboard-host": "127.0.0.1",
            "dashboard-port": self.dashboard_port,
            "ray-client-server-port": self.client_port,
            "dashboard-agent-listen-port": self.agent_port,
            "min-worker-port": 0,  # Ray's fixed range would collide with another copy's
            "max-worker-port": 0,
            "num-cpus": NUM_CPUS,
            "object-store-memory": OBJECT_STORE_BYTES,
            "temp-dir": self.home.ray_folder,
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        python = self.home.alias_of(sys.executable)
        ray = [python, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--disable-usage-stats", *words]
        return [python, "-m", "engine.node", "--", *ray]

    def environment(self) -> dict[str, str]:
        python = Path(self.home.alias_of(sys.executable))
        return {
            **shell_variables(),
            "PATH": f"{python.parent}:{os.environ.get('PATH', '')}",
            "VIRTUAL_ENV": str(python.parent.parent),
            "PYTHONPATH": str(self.home.project_alias),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.token_file),
            "RAY_USAGE_STATS_ENABLED": "0",
            # Without this, Ray on Linux turns 127.0.0.1 into the machine's address and listens on every interface.
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "LAMINAR_STORE_DIR": str(self.home.store),
            **{name: os.environ[name] for name in (*PASSED_ON, NICENESS) if name in os.environ},
        }

    def is_healthy(self) -> bool:
        """The Jobs API answers, so does the agent that it hands jobs to, and their files are still there."""
        headers = {"Authorization": f"Bearer {self.home.secret('ray')}"}
        agent = f"http://127.0.0.1:{self.agent_port}/api/local_raylet_healthz"
        both = (f"{self.url}/api/version", agent)
        return all(responds(address, headers=headers) for address in both) and self.home.project_alias.exists()
