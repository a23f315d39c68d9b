"""A Hub on the loopback address: the part of its protocol that huggingface_hub uses to fetch and upload a model."""

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

TOKEN = "hf_of_the_test"


class Hub:
    """Repos of models, each a list of commits; a commit is file name to bytes."""

    def __init__(self) -> None:
        self.repos: dict[str, list[tuple[str, dict[str, bytes]]]] = {}
        self.tags: dict[tuple[str, str], str] = {}
        self.blobs: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.gated: set[str] = set()
        self.role = "write"
        self.broken: str = ""
        """What is answered with status 500: requests with this text in them."""

    def push(self, repo: str, files: dict[str, bytes], tag: str | None = None) -> str:
        commits = self.repos.setdefault(repo, [])
        commit = hashlib.sha1(f"{repo}{len(commits)}".encode()).hexdigest()
        commits.append((commit, files))
        if tag:
            self.tags[repo, tag] = commit
        return commit

    def push_folder(self, repo: str, folder: Path, **more: bytes) -> str:
        return self.push(repo, {file.name: file.read_bytes() for file in folder.iterdir()} | more)

    def at(self, repo: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        commits = self.repos[repo]
        wanted = self.tags.get((repo, revision), revision)
        return commits[-1] if wanted == "main" else next((c for c in commits if c[0] == wanted), None)


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, content=b"", status=200, **headers):
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def fail(self, status, code):
        self.answer({"error": code}, status, X_Error_Code=code, X_Error_Message=code)

    def body(self):
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def serve(self):
        hub, path, body = self.hub, unquote(self.path).partition("?")[0], self.body()
        hub.requests.append(f"{self.command} {path}")
        if hub.broken and hub.broken in path:
            return self.fail(500, "Broken")
        if match := re.fullmatch(r"/blob/(\w+)", path):
            hub.blobs[match[1]] = body
            return self.answer()
        if path == "/api/whoami-v2":
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self.fail(401, "Unauthorized")
            access = {"accessToken": {"role": hub.role}}
            return self.answer({"name": "me", "type": "user", "orgs": [{"name": "us"}], "auth": access})
        if path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if path == "/api/repos/create":
            wanted = json.loads(body)
            repo = f"{wanted['organization']}/{wanted['name']}"
            hub.repos.setdefault(repo, [])
            return self.answer({"url": f"http://{self.headers['Host']}/{repo}", "name": repo})
        repo = re.match(r"(?:/api/models)?/([\w-]+/[\w.-]+?)(?=\.git/|/|$)", path)
        if repo is None or repo[1] not in hub.repos:
            return self.fail(401 if not self.headers.get("Authorization") else 404, "RepoNotFound")
        return self.of_repo(repo[1], path[repo.end() :], body, is_api=path.startswith("/api"))

    def of_repo(self, repo, rest, body, is_api):
        hub = self.hub
        if repo in hub.gated:
            return self.fail(403, "GatedRepo")
        if rest == ".git/info/lfs/objects/batch":
            url = f"http://{self.headers['Host']}/blob/"
            objects = [{**o, "actions": {"upload": {"href": url + o["oid"]}}} for o in json.loads(body)["objects"]]
            return self.answer({"objects": objects})
        if rest.startswith("/preupload/"):
            asked = [file["path"] for file in json.loads(body)["files"]]
            mode = {True: "lfs", False: "regular"}
            files = [{"path": p, "uploadMode": mode[p.endswith(".safetensors")], "shouldIgnore": False} for p in asked]
            return self.answer({"files": files})
        if rest.startswith("/commit/"):
            values = [json.loads(line) for line in body.splitlines()]
            files = {v["value"]["path"]: base64.b64decode(v["value"]["content"]) for v in values if v["key"] == "file"}
            files |= {v["value"]["path"]: hub.blobs[v["value"]["oid"]] for v in values if v["key"] == "lfsFile"}
            commit = hub.push(repo, files)
            url = f"http://{self.headers['Host']}/{repo}/commit/{commit}"
            return self.answer({"commitOid": commit, "commitUrl": url, "success": True})
        kind, _, rest = rest.lstrip("/").partition("/")
        revision, _, name = (rest or "main").partition("/")
        if not hub.repos[repo] or (found := hub.at(repo, revision)) is None:
            return self.fail(404, "RevisionNotFound") if kind else self.answer({"id": repo, "siblings": []})
        commit, files = found
        if kind == "resolve":
            if name not in files:
                return self.fail(404, "EntryNotFound")
            etag = hashlib.sha1(files[name]).hexdigest()
            return self.answer(files[name], ETag=f'"{etag}"', X_Repo_Commit=commit)
        entries = [
            {"type": "file", "path": n, "size": len(c), "oid": hashlib.sha1(c).hexdigest()} for n, c in files.items()
        ]
        if is_api and kind == "tree":
            return self.answer(entries)
        return self.answer({"id": repo, "sha": commit, "siblings": [{"rfilename": n} for n in files]})

    do_GET = do_HEAD = do_POST = do_PUT = serve  # noqa: N815


@contextmanager
def serving():
    """A `Hub` and the address where it answers."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
