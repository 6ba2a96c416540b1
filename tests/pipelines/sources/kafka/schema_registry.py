"""A schema registry in memory that speaks the protocol of Confluent's over HTTP, for their own client."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class SchemaRegistry:
    """What was registered; `status` is what it answers instead of schemas, and `password` what it asks for."""

    url: str = ""
    status: int = 200
    password: str | None = None
    asked: int = 0
    schemas: list[dict[str, Any]] = field(default_factory=list)
    subjects: dict[str, list[int]] = field(default_factory=dict)

    def register(self, subject: str, schema: dict[str, Any]) -> int:
        """Keep a schema as the next version of a subject; return its number."""
        if schema not in self.schemas:
            self.schemas.append(schema)
        number = self.schemas.index(schema) + 1
        versions = self.subjects.setdefault(subject, [])
        if number not in versions:
            versions.append(number)
        return number

    def answer(self, path: str) -> dict[str, Any] | None:
        """Return what a GET of a path finds."""
        match path.split("?", maxsplit=1)[0].strip("/").split("/"):
            case ["schemas", "ids", number] if 0 < int(number) <= len(self.schemas):
                return self.schemas[int(number) - 1]
            case ["subjects", subject, "versions", version] if len(self.subjects.get(subject, ())) >= int(version):
                number = self.subjects[subject][int(version) - 1]
                return self.schemas[number - 1] | {"subject": subject, "version": int(version), "id": number}
        return None


class _Handler(BaseHTTPRequestHandler):
    registry: SchemaRegistry

    def do_GET(self) -> None:
        """Answer with a schema."""
        self.registry.asked += 1
        found = self.registry.answer(self.path)
        missing = {"error_code": 40403, "message": "Schema not found"}
        self._send(200 if found else 404, found or missing)

    def do_POST(self) -> None:
        """Register a schema."""
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        schema = {name: content[name] for name in ("schema", "schemaType", "references") if content.get(name)}
        self._send(200, {"id": self.registry.register(self.path.strip("/").split("/")[1], schema)})

    def _send(self, status: int, content: dict[str, Any]) -> None:
        wanted = self.registry.password
        given = self.headers.get("Authorization", "")
        if wanted is not None and given != f"Basic {base64.b64encode(wanted.encode()).decode()}":
            status, content = 401, {"error_code": 40101, "message": "Unauthorized"}
        if self.registry.status != 200:
            status, content = self.registry.status, {"error_code": 50001, "message": "out of order"}
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def schema_registry() -> Iterator[SchemaRegistry]:
    """Run a registry on a free port while inside."""
    registry = SchemaRegistry()
    handler = type("Handler", (_Handler,), {"registry": registry})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    registry.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
