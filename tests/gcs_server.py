"""A stand-in of Google Cloud Storage: objects in memory, behind as much of its JSON interface as reading needs."""

import base64
import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, unquote, urlsplit

import local_server


class Store:
    """Buckets by name; each has objects by name."""

    def __init__(self) -> None:
        self.buckets: dict[str, dict[str, bytes]] = {}
        self.url = ""


@contextlib.contextmanager
def serve() -> Iterator[Store]:
    """Runs a store on a free port of this machine."""
    store = Store()
    with local_server.serve(type("Handler", (_Handler,), {"store": store})) as store.url:
        yield store


class _Handler(BaseHTTPRequestHandler):
    store: Store
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        match = re.fullmatch(r"(/download)?/storage/v1/b/([^/]+)(?:/o(?:/([^/]+))?)?", parts.path)
        objects = self.store.buckets.get(match[2]) if match else None
        if match is None or objects is None:
            self._answer(404, {"error": {"code": 404, "message": "there is no such bucket"}})
        elif match[3] is None:
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            self._answer(200, _listing(match[2], objects, query.get("prefix", ""), query.get("delimiter", "")))
        elif (content := objects.get(unquote(match[3]))) is None:
            self._answer(404, {"error": {"code": 404, "message": "there is no such object"}})
        elif match[1]:
            self._send(content)
        else:
            self._answer(200, _entry(match[2], unquote(match[3]), content))

    def _send(self, content: bytes) -> None:
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            begin, end = int(wanted[1]), min(int(wanted[2] or len(content)), len(content) - 1)
            self._answer(206, content[begin : end + 1], {"Content-Range": f"bytes {begin}-{end}/{len(content)}"})
        else:
            self._answer(200, content)

    def _answer(self, status: int, content: object, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        kind = "application/octet-stream" if isinstance(content, bytes) else "application/json"
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def _listing(bucket: str, objects: dict[str, bytes], prefix: str, delimiter: str) -> dict:
    """The objects below a prefix; with a delimiter those in it, and the prefixes of the others."""
    items, prefixes = [], set()
    for name, content in sorted(objects.items()):
        inner = name.removeprefix(prefix)
        if not name.startswith(prefix):
            continue
        if delimiter and delimiter in inner:
            prefixes.add(prefix + inner.partition(delimiter)[0] + delimiter)
        else:
            items.append(_entry(bucket, name, content))
    return {"kind": "storage#objects", "items": items, "prefixes": sorted(prefixes)}


def _entry(bucket: str, name: str, content: bytes) -> dict:
    digest = base64.b64encode(hashlib.md5(content).digest()).decode()
    times = dict.fromkeys(("timeCreated", "updated"), "2026-01-01T00:00:00.000Z")
    facts = {"bucket": bucket, "name": name, "size": str(len(content)), "md5Hash": digest, "generation": "1"}
    return {"kind": "storage#object", **facts, **times}
