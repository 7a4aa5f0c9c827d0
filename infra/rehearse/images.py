"""The project's images from their unchanged Dockerfiles, on stand-ins for the base images of a registry.

Invariant: no file of the project is changed. A stand-in has the contents of its registry image, from Debian and from
wheels in the project's own locks.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

from infra.rehearse.container_engine import docker
from infra.rehearse.site import VERSION
from infra.rehearse.work import Work, stage

STAND_INS = Path(__file__).with_name("stand_ins")
# In this order, for each is built on one before it.
IMAGES = {
    "python": "python:3.11-slim-bookworm",
    "postgres": "postgres:18",
    "valkey": "valkey/valkey:9",
    "caddy": "caddy:2",
}
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
WHEEL_PORT = 8099


def build(work: Work) -> None:
    make_stand_ins(work)
    build_all(work, VERSION)


def build_all(work: Work, version: str) -> None:
    images = work.project / "infra" / "images"
    with _page_of_torch(work):
        build_one(work, f"laminar-web:{version}", images / "web")
        found_there = {"TORCH": "cpu", "PIP_FIND_LINKS": f"http://127.0.0.1:{WHEEL_PORT}/"}
        build_one(work, f"laminar-engine:{version}", images / "engine", **found_there)
        build_one(
            work, f"laminar-backup:{version}", work.project / "infra" / "backup", WEB_IMAGE=f"laminar-web:{version}"
        )


def build_one(work: Work, tag: str, folder: Path, **choices: str) -> None:
    """Under a label, without which two versions of the same files would be one image with two names."""
    with stage(f"image {tag}"):
        arguments = [word for name, value in choices.items() for word in ("--build-arg", f"{name}={value}")]
        arguments += ["--label", f"rehearsed={tag}", "--file", str(folder / "Dockerfile"), "--tag", tag]
        docker(work, "build", "--network=host", *arguments, str(work.project))


def make_stand_ins(work: Work) -> None:
    context = work.shared / "stand_ins"
    shutil.copytree(STAND_INS, context, dirs_exist_ok=True)
    shutil.copy(CERTIFICATES, context / "certificates.crt")
    for wheel in work.wheels.glob("*.whl"):
        shutil.copy(wheel, context)
    if not docker(work, "images", "--quiet", "rehearse-debian:12"):
        docker(work, "import", str(work.base), "rehearse-debian:12")
    for name, tag in IMAGES.items():
        with stage(f"stand-in {tag}"):
            file = str(context / f"{name}.Dockerfile")
            docker(work, "build", "--network=host", "--file", file, "--tag", tag, str(context))


@contextmanager
def _page_of_torch(work: Work) -> Iterator[None]:
    """Where the build finds torch's wheel."""
    handler = partial(_Silent, directory=str(work.torch))
    with ThreadingHTTPServer(("127.0.0.1", WHEEL_PORT), handler) as server:
        Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        yield
        server.shutdown()


class _Silent(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: the log of the builds lists the files that pip took."""
