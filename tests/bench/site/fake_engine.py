"""An engine on the other side of the wire: speaks the Ray Jobs API as far as the launcher does, and each job that it is
given is driven by a coroutine that posts facts and heartbeats as a real driver does. No training, no Ray.

    python -m tests.bench.site.fake_engine --port 9000 --seed 1

It counts what runs by its own books: from the moment in which it accepts a submission to the moment before it sends the
last fact. The control plane can only give devices away after that, so `worst` above the pool's capacity means oversold.
GET /bench/books returns these counts.
"""

import argparse
import asyncio
import io
import json
import random
import zipfile
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx
import uvicorn

from engine.spec.control import AttemptOrder

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

LONGEST_STEP_S = 0.03  # the race is about who gets devices; while a job holds them, everybody else waits
HEARTBEAT_EVERY_S = 0.5
RETRY_S = 0.2


@dataclass(slots=True)
class Submission:
    name: str
    order: AttemptOrder
    replicas: int
    status: str = "PENDING"
    task: asyncio.Task[None] | None = None

    @property
    def devices(self) -> int:
        spec = self.order.spec
        return spec.trainer_devices + self.replicas * spec.resources.devices_per_replica


@dataclass(slots=True)
class Books:
    submissions: dict[str, Submission] = field(default_factory=dict)
    holding: dict[str, Submission] = field(default_factory=dict)
    worst: int = 0
    most_at_once: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    resized: int = 0

    def accept(self, name: str, one: Submission) -> None:
        self.submissions[name] = self.holding[name] = one
        self.look()

    def let_go(self, one: Submission) -> None:
        """Twice is as good as once."""
        self.holding.pop(one.name, None)

    def look(self) -> None:
        held = list(self.holding.values())
        self.worst = max(self.worst, sum(one.devices for one in held))
        for one in held:
            together = sum(other.order.job == one.order.job for other in held)
            self.most_at_once[one.order.job] = max(self.most_at_once[one.order.job], together)

    def told(self) -> dict[str, Any]:
        return {
            "worst": self.worst,
            "launched": sorted(self.submissions),
            "most_at_once": max(self.most_at_once.values(), default=0),
            "live": len(self.holding),
            "resized": self.resized,
        }


class Fenced(Exception):
    """The control plane wants nothing more of this attempt."""


class Driver:
    """A driver that keeps facts and sends them until they are acknowledged, whatever happens to the web server."""

    def __init__(self, one: Submission, books: Books, client: httpx.AsyncClient, rng: random.Random) -> None:
        self._one, self._books, self._client, self._rng = one, books, client, rng
        self._facts: list[dict[str, Any]] = []
        self._acked = 0
        self._answered: set[str] = set()

    async def run(self) -> None:
        one = self._one
        one.status = "RUNNING"
        try:
            await self._say(
                {"type": "driver_started", "host": "fake", "pid": 1},
                {"type": "pipeline_ready", "num_replicas": one.replicas, "num_parameters": 1},
            )
            outcome = await self._train()
            self._let_go()
            await self._say({"type": "run_finished", "outcome": outcome})
            one.status = "SUCCEEDED"
        except Fenced:
            one.status = "STOPPED"
        finally:
            self._let_go()

    async def _train(self) -> str:
        for step in range(1, self._one.order.spec.training.steps + 1):
            await asyncio.sleep(self._rng.random() * LONGEST_STEP_S)
            await self._say({"type": "step_trained", "step": step, "metrics": {"reward/mean": 0.5}})
            for request in await self._beat(step):
                if request["id"] in self._answered:
                    continue
                self._answered.add(request["id"])
                outcome = await self._answer(request)
                if outcome:
                    return outcome
        return "succeeded"

    async def _answer(self, request: dict[str, Any]) -> str:
        acknowledged = {"type": "request_acknowledged", "request_id": request["id"]}
        if request["kind"] != "resize":
            await self._say(acknowledged)
            return {"cancel": "cancelled", "pause": "paused"}[request["kind"]]
        self._one.replicas = request["replicas"]
        self._books.resized += 1
        self._books.look()
        await self._say(acknowledged, {"type": "replicas_resized", "replicas": request["replicas"]})
        return ""

    def _let_go(self) -> None:
        self._books.let_go(self._one)

    async def _say(self, *bodies: dict[str, Any]) -> None:
        at = datetime.now(UTC).isoformat()
        self._facts += [
            {"seq": seq, "at": at, "body": body} for seq, body in enumerate(bodies, start=len(self._facts) + 1)
        ]
        while self._acked < len(self._facts):
            answer = await self._post("facts", facts=self._facts[self._acked :])
            self._acked = answer["acked"]

    async def _beat(self, step: int) -> list[dict[str, Any]]:
        answer = await self._post("heartbeat", step=step)
        found: list[dict[str, Any]] = answer["requests"]
        return found

    async def _post(self, path: str, **body: Any) -> dict[str, Any]:
        order = self._one.order
        sent = {"attempt": order.attempt, "fence": order.fence} | body
        headers = {"Authorization": f"Bearer {order.token}"}
        while True:
            try:
                url = f"{order.control_url}/internal/engine/{path}"
                answer = await self._client.post(url, json=sent, headers=headers)
            except httpx.HTTPError:
                await asyncio.sleep(RETRY_S)
                continue
            if answer.status_code == 200:
                found: dict[str, Any] = answer.json()
                return found
            problem = answer.json() if answer.headers.get("content-type") == "application/problem+json" else {}
            if problem.get("code") == "gap":
                return {"acked": problem["acked"]}
            if answer.status_code in {401, 409, 422}:
                raise Fenced(answer.text)
            await asyncio.sleep(RETRY_S)


class FakeEngine:
    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._books = Books()
        self._packages: dict[str, bytes] = {}
        limits = httpx.Limits(max_connections=64)  # kept; one breaks with its server, and what it carried is sent again
        self._client = httpx.AsyncClient(timeout=20, limits=limits, trust_env=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        status, answer = self._answer(scope["method"], scope["path"], body)
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(answer).encode()})

    def _answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        known = self._books.submissions
        match method, path.strip("/").split("/"):
            case "PUT", ["api", "packages", "gcs", name]:
                self._packages[name] = body
                return 200, {}
            case "POST", ["api", "jobs"]:
                return self._submit(json.loads(body))
            case "GET", ["api", "jobs"]:
                return 200, [{"submission_id": name, "status": one.status} for name, one in known.items()]
            case "GET", ["api", "jobs", name] if name in known:
                return 200, {"submission_id": name, "status": known[name].status}
            case "GET", ["api", "jobs", name, "logs"] if name in known:
                return 200, {"logs": ""}
            case "POST", ["api", "jobs", name, "stop"] if name in known:
                task = known[name].task
                if task is not None and not task.done():
                    known[name].status = "STOPPED"
                    task.cancel()
                return 200, {"stopped": True}
            case "GET", ["bench", "books"]:
                return 200, self._books.told()
        return 404, {"error": "unknown"}

    def _submit(self, wanted: dict[str, Any]) -> tuple[int, Any]:
        name = wanted["submission_id"]
        if name in self._books.submissions:
            return 500, {"error": "submission_id exists already"}  # as Ray answers
        package = self._packages.pop(wanted["runtime_env"]["working_dir"].removeprefix("gcs://"))
        order = AttemptOrder.model_validate_json(zipfile.ZipFile(io.BytesIO(package)).read("order.json"))
        one = Submission(name=name, order=order, replicas=order.replicas or order.spec.rollout.replicas)
        self._books.accept(name, one)
        driver = Driver(one, self._books, self._client, random.Random(self._rng.random()))
        one.task = asyncio.get_running_loop().create_task(driver.run())
        return 200, {"submission_id": name}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    uvicorn.run(FakeEngine(chosen.seed), host="127.0.0.1", port=chosen.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()
