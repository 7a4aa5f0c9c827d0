"""Run by test_full_disk in a mount namespace of its own: a home on a small tmpfs, filled while its site runs.

    python -m tests.infra.local.on_a_small_disk HOME SERVICE…

Prints `ok`, or fails. Each service has to be there again, and every status written, once there is room.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from infra.local.home import PROJECT, Home, read_json
from infra.local.services.site import Site
from tests.waiting import eventually

SIZE = "200m"  # a Postgres of 40 MB, with room for its own log


def main() -> None:
    home, names = Home(Path(sys.argv[1])), sys.argv[2:]
    home.folder.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=711", "tmpfs", str(home.folder)], check=True)
    command = [sys.executable, "-m", "infra.local", "--home", str(home.folder)]
    subprocess.run([*command, "up", *names], cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)
    try:
        suffer(home, names)
    finally:
        subprocess.run([*command, "down"], cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)
    print("ok")


def suffer(home: Home, names: list[str]) -> None:
    status = read_json(home.status_file)
    assert status is not None
    supervisor, before = status["supervisor"]["pid"], {name: status["services"][name]["pid"] for name in names}
    site = Site(home=home, ports=home.written_ports())
    healthy = {"postgres": site.postgres.is_healthy, "valkey": site.valkey.is_healthy}
    filler = home.folder / "filler"
    try:
        with filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
    except OSError:
        pass
    for pid in before.values():
        os.kill(pid, signal.SIGKILL)
    # The supervisor cannot write its status: only the ended processes show it, and that the supervisor is alive.
    eventually(
        lambda: [name for name, pid in before.items() if Path(f"/proc/{pid}").exists()],
        "the killed services have ended",
        until=lambda names: not names,
    )
    time.sleep(1.0)  # some of its attempts to start them on a full disk
    assert Path(f"/proc/{supervisor}").exists(), (home.logs / "supervisor.log").read_text()
    filler.unlink()

    def is_well() -> bool:
        now = read_json(home.status_file)
        written = now is not None and all(now["services"][name]["state"] == "healthy" for name in names)
        return written and all(healthy[name]() for name in names)

    eventually(is_well, "every service is healthy again", log=(home.logs / "supervisor.log").read_text)
    assert (read_json(home.status_file) or {})["supervisor"]["pid"] == supervisor


if __name__ == "__main__":
    main()
