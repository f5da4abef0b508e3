"""A stand-in of the Hugging Face Hub: repositories in memory, behind as much of its HTTP interface as we use."""

import base64
import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qsl, unquote, urlsplit

import local_server

TOKEN = "hf_writer"


class Hub:
    """Repositories by name; each has branches, each with a commit and its files.

    `refuses` maps a part of a path to the status that requests with it get; `broken` parts get no answer.
    """

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, str]] = {}  # name -> branch -> commit
        self.commits: dict[str, dict[str, bytes]] = {}  # commit -> path -> content
        self.private: set[str] = set()
        self.messages: list[str] = []
        self.url = ""
        self.refuses: dict[str, int] = {}
        self.broken: list[str] = []

    def commit(self, files: dict[str, bytes]) -> str:
        digest = hashlib.sha1(b"".join(path.encode() + content for path, content in sorted(files.items())))
        self.commits[digest.hexdigest()] = files
        return digest.hexdigest()

    def find(self, repo: str, revision: str) -> str | None:
        branches = self.repos.get(repo, {})
        return branches.get(revision) or (revision if revision in self.commits else None)


@contextlib.contextmanager
def serve() -> Iterator[Hub]:
    """Runs a hub on a free port of this machine."""
    hub = Hub()
    with local_server.serve(type("Handler", (_Handler,), {"hub": hub})) as hub.url:
        yield hub


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self, status: int, content: object = None, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str, message: str) -> None:
        self._answer(status, {"error": message}, {"X-Error-Code": code, "X-Error-Message": message})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = unquote(urlsplit(self.path).path)
        refused = next((status for part, status in self.hub.refuses.items() if part in path), 0)
        if any(part in path for part in self.hub.broken):
            self.close_connection = True
        elif refused:
            self._refuse(refused, "", "Something about this request.")
        elif match := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)/paths-info/([^/]+)", path):
            files = self.hub.commits[match[2]]
            asked = [unquote(value) for key, value in parse_qsl(body.decode()) if key == "paths"]
            self._answer(200, [_entry(name, files[name]) for name in asked if name in files])
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._refuse(401, "", "Invalid username or password.")
        elif path == "/api/repos/create":
            self._create(json.loads(body))
        elif path == "/api/validate-yaml":
            self._answer(200, {"errors": [], "warnings": []})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/branch/(.+)", path):
            branches = self.hub.repos[match[1]]
            known = match[2] in branches
            branches.setdefault(match[2], branches["main"])
            self._answer(409 if known else 200, {})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/(.+)", path):
            files = [
                {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
                for each in json.loads(body)["files"]
            ]
            self._answer(200, {"files": files})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/(.+)", path):
            self._commit(match[1], match[2], body)
        else:
            self._answer(404, {"error": f"the stand-in has no {path}"})

    def _create(self, asked: dict) -> None:
        name = "/".join(filter(None, (asked.get("organization"), asked["name"])))
        known = name in self.hub.repos
        if not known:
            self.hub.repos[name] = {"main": self.hub.commit({})}
            if asked.get("private") or asked.get("visibility") == "private":  # before and since version 2
                self.hub.private.add(name)
        self._answer(409 if known else 200, {"url": f"{self.hub.url}/{name}", "name": name, "id": name})

    def _commit(self, repo: str, branch: str, body: bytes) -> None:
        files = dict(self.hub.commits[self.hub.repos[repo][branch]])
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "header":
                self.hub.messages.append(line["value"]["summary"])
            elif line["key"] == "deletedFile":
                del files[line["value"]["path"]]
            else:
                assert line["key"] == "file", line
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        oid = self.hub.repos[repo][branch] = self.hub.commit(files)
        self._answer(200, {"success": True, "commitOid": oid, "commitUrl": f"{self.hub.url}/{repo}/commit/{oid}"})

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        if match := re.fullmatch(r"/api/(?:models|datasets)/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self._info(match[1], match[2] or "main")
        elif match := re.fullmatch(r"/api/(?:models|datasets)/([^/]+/[^/]+)/tree/([^/]+)/?(.*)", path):
            files = self.hub.commits[self.hub.find(match[1], match[2]) or ""]
            self._answer(200, _tree(files, match[3], recursive="recursive=true" in urlsplit(self.path).query.lower()))
        elif match := re.fullmatch(r"(?:/datasets)?/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            commit = self.hub.find(match[1], match[2])
            content = self.hub.commits.get(commit or "", {}).get(match[3])
            if content is None:
                self._refuse(404, "EntryNotFound", "Entry not found")
            else:
                self._send_file(content, str(commit))
        else:
            self._answer(404, {"error": f"the stand-in has no {path}"})

    do_HEAD = do_GET  # noqa: N815 - http.server calls it by this name

    def _send_file(self, content: bytes, commit: str) -> None:
        headers = {"ETag": f'"{_oid(content)}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            begin, end = int(match[1]), min(int(match[2] or len(content)), len(content) - 1)
            headers["Content-Range"] = f"bytes {begin}-{end}/{len(content)}"
            self._answer(206, content[begin : end + 1], headers)
        else:
            self._answer(200, content, headers)

    def _info(self, repo: str, revision: str) -> None:
        allowed = repo not in self.hub.private or self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if repo not in self.hub.repos or not allowed:
            self._refuse(404 if allowed else 401, "RepoNotFound", "Repository not found")
        elif (commit := self.hub.find(repo, revision)) is None:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            siblings = [{"rfilename": path} for path in self.hub.commits[commit]]
            about = {"private": repo in self.hub.private, "tags": [], "downloads": 0, "likes": 0}
            self._answer(200, {"id": repo, "modelId": repo, "sha": commit, "siblings": siblings, **about})


def _entry(path: str, content: bytes) -> dict:
    return {"type": "file", "path": path, "size": len(content), "oid": _oid(content)}


def _tree(files: dict[str, bytes], folder: str, recursive: bool) -> list[dict]:
    """The files below a folder; where it is not recursive, those in it, and its folders."""
    prefix = f"{folder}/" if folder else ""
    below = {path: content for path, content in files.items() if path.startswith(prefix)}
    inner = {path: path.removeprefix(prefix).split("/") for path in below}
    folders = {prefix + parts[0] for parts in inner.values() if len(parts) > 1}
    shown = [_entry(path, content) for path, content in below.items() if recursive or len(inner[path]) == 1]
    return shown + [{"type": "directory", "path": path, "oid": _oid(path.encode())} for path in sorted(folders)]


def _oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
