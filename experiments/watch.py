"""`greedyfed watch`: a run as it goes, in a browser. Nothing is written, and little is let in."""

import gzip
import hashlib
import ipaddress
import json
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from common.errors import GreedyfedError
from experiments.report import data_text, page, policy
from experiments.run_data import RunData, RunDataError, find_runs, is_held, read_run


class WatchError(GreedyfedError):
    """The page cannot be served."""


class Follower:
    """The latest that could be read of a run directory, whatever becomes of it.

    Attributes:
        run: the run when it could last be read.
        trouble: why it cannot be read now, else None.

    Raises:
        RunDataError: it cannot be read to begin with.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run: RunData = read_run(path)
        self.trouble: str | None = None
        self._seen = self._files()

    def look(self) -> bool:
        """Read again if something has changed since; whether it has."""
        files = self._files()
        if files == self._seen:
            return False
        self._seen = files
        try:
            self.run, self.trouble = read_run(self.path), None
        except RunDataError as error:
            self.trouble = str(error)
        return True

    def _files(self) -> tuple[object, ...]:
        """Changes whenever a file of the run does, or the process that writes it comes or goes."""
        found: list[object] = [is_held(self.path)]
        for file in sorted(self.path.glob("*.*")):
            try:
                stat = file.stat()
            except OSError:  # replaced just now
                continue
            found += [file.name, stat.st_mtime_ns, stat.st_size, stat.st_ino]
        return tuple(found)


def follow(path: Path) -> Follower:
    """The run of a run directory, or the newest one in a folder of runs.

    Raises:
        RunDataError: no run there, or one that cannot be read.
    """
    runs = find_runs(path)
    return Follower(runs[-1] if runs else path)


class RunServer(ThreadingHTTPServer):
    """Serves the page of one run, and its data when they have changed.

    Bound to the loopback interface it answers only to names of this machine: another site whose
    name is pointed here (DNS rebinding) is refused.

    Raises:
        WatchError: the address cannot be bound.
    """

    daemon_threads = True

    def __init__(self, follower: Follower, host: str, port: int) -> None:
        self._follower, self._lock = follower, threading.Lock()
        self._page = page(data_text([follower.run]), live=True).encode()
        self._say()
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise WatchError(
                f"--host {host} --port {port}: cannot be bound: {error.strerror or error}; give "
                "another, or --port 0 for any that is free"
            ) from error
        address = self.server_address[0]
        self.is_local = ipaddress.ip_address(str(address)).is_loopback
        self.names = {"localhost", "127.0.0.1", "[::1]", host.lower(), f"[{host.lower()}]"}
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.server_address[1]}/"

    def news(self) -> tuple[bytes, str]:
        """What the page shows now as JSON, and its entity tag."""
        with self._lock:
            if self._follower.look():
                self._say()
            return self._body, self._tag

    def fresh_page(self) -> bytes:
        """The page, with what it shows now."""
        with self._lock:
            if self._follower.look():
                self._say()
                self._page = page(data_text([self._follower.run]), live=True).encode()
            return self._page

    def _say(self) -> None:
        trouble = self._follower.trouble
        body = json.dumps({"trouble": trouble}) if trouble else data_text([self._follower.run])
        self._body = body.encode()
        self._tag = f'"{hashlib.sha256(self._body).hexdigest()[:20]}"'

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away is no error."""


class _Handler(BaseHTTPRequestHandler):
    """GET and HEAD of two addresses; everything else is refused by its base."""

    server: RunServer
    server_version, sys_version = "greedyfed", ""
    timeout = 30

    def do_GET(self) -> None:
        host = self.headers.get("Host", "").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if self.server.is_local and name not in self.server.names:
            self._answer(HTTPStatus.MISDIRECTED_REQUEST, b"not a name of this machine\n")
        elif self.path == "/":
            self._answer(HTTPStatus.OK, self.server.fresh_page(), "text/html; charset=utf-8")
        elif self.path == "/data.json":
            body, tag = self.server.news()
            if self.headers.get("If-None-Match") == tag:
                self._answer(HTTPStatus.NOT_MODIFIED, b"", tag=tag)
            else:
                self._answer(HTTPStatus.OK, body, "application/json", tag)
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"there is / and /data.json\n")

    do_HEAD = do_GET  # noqa: N815

    def _answer(
        self, status: HTTPStatus, body: bytes, kind: str = "text/plain", tag: str = ""
    ) -> None:
        self.send_response(status)
        if kind == "application/json" and "gzip" in self.headers.get("Accept-Encoding", ""):
            body = gzip.compress(body, 1)
            self.send_header("Content-Encoding", "gzip")
        if tag:
            self.send_header("ETag", tag)
        if status != HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", f"{policy(True)}; frame-ancestors 'none'")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """The terminal stays quiet."""
