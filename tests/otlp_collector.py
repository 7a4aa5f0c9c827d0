"""A real collector of spans: an HTTP server that takes what OTLP's own definition takes, and refuses the rest."""

import base64
import importlib
import json
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

# Neither brings types that mypy could read.
_json: Any = importlib.import_module("google.protobuf.json_format")
_definition: Any = importlib.import_module("opentelemetry.proto.collector.trace.v1.trace_service_pb2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    service: str
    name: str
    trace: str
    id: str
    parent: str
    began: int
    ended: int
    attributes: dict[str, Any]
    events: tuple[str, ...]
    is_failure: bool


class Collector:
    def __init__(self, status: int = 200) -> None:
        self.spans: list[Taken] = []
        self.bodies: list[str] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                collector.bodies.append(body)
                answer = status
                if self.path != "/v1/traces" or self.headers["Content-Type"] != "application/json":
                    answer = 404
                elif status == 200:
                    try:
                        collector.spans += _taken(json.loads(body))
                    except (_json.ParseError, ValueError):
                        answer = 400
                self.send_response(answer)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *arguments: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=[0.02], daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def named(self, name: str) -> list[Taken]:
        return [span for span in self.spans if span.name == name]


def _taken(document: Any) -> list[Taken]:
    request = _json.ParseDict(_with_bytes(document), _definition.ExportTraceServiceRequest())
    return [
        Taken(
            service=next(pair.value.string_value for pair in of.resource.attributes if pair.key == "service.name"),
            name=span.name,
            trace=span.trace_id.hex(),
            id=span.span_id.hex(),
            parent=span.parent_span_id.hex(),
            began=span.start_time_unix_nano,
            ended=span.end_time_unix_nano,
            attributes={pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes},
            events=tuple(event.name for event in span.events),
            is_failure=span.status.code == 2,
        )
        for of in request.resource_spans
        for scope in of.scope_spans
        for span in scope.spans
    ]


def _with_bytes(node: Any) -> Any:
    """OTLP writes ids in hexadecimal, and no other bytes; protobuf's own JSON wants base64."""
    if isinstance(node, list):
        return [_with_bytes(each) for each in node]
    if not isinstance(node, dict):
        return node
    ids = ("traceId", "spanId", "parentSpanId")
    return {
        key: base64.b64encode(bytes.fromhex(value)).decode() if key in ids else _with_bytes(value)
        for key, value in node.items()
    }
