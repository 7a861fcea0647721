"""`greedyfed watch`: a run as it goes, in a browser. Nothing is written, and little is let in."""

import gzip
import hashlib
import ipaddress
import socket
import sys
import threading
from dataclasses import replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from common.errors import GreedyfedError, one_line
from experiments.report import data_text, page, policy
from experiments.run_data import RunData, RunDataError, find_runs, read_run
from server_app.run_directory import is_held


class WatchError(GreedyfedError):
    """The page cannot be served."""


class Follower:
    """The latest that could be read of a run directory, whatever becomes of it.

    Attributes:
        run: the run when it could last be read; one that cannot be read is not `running` unless a
            process is at it.
        trouble: why it cannot be read now, else None.
        data: both as the page shows them, in JSON.

    Raises:
        RunDataError: it cannot be read to begin with.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen = self._files()
        self.trouble: str | None = None
        self.run, self.data = _read(path)

    def look(self) -> bool:
        """Read again if something has changed since; whether it has."""
        files = self._files()
        if files == self._seen:
            return False
        self._seen = files
        try:
            (self.run, self.data), self.trouble = _read(self.path), None
        except GreedyfedError as error:
            gone = f"{self.path}: the run's folder is gone"
            why = error if self.path.exists() else gone
            self.trouble = f"{why}; the figures are the last seen"
            if self.run.state == "running" and not is_held(self.path):
                self.run = replace(self.run, state="stopped")
            self.data = data_text([self.run], self.trouble)
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


def _read(path: Path) -> tuple[RunData, str]:
    try:
        run = read_run(path)
        return run, data_text([run])
    except GreedyfedError:
        raise
    except Exception as error:  # a file may hold anything
        raise RunDataError(
            f"{path}: holds something else than a run of this version: {type(error).__name__}: "
            f"{one_line(error)}; give the directory of one"
        ) from error


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
        self._say()
        self._page = page(follower.data, live=True).encode()  # its errors come now
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
            self._look()
            return self._body, self._tag

    def fresh_page(self) -> bytes:
        """The page, with what it shows now."""
        with self._lock:
            self._look()
            self._page = self._page or page(self._follower.data, live=True).encode()
            return self._page

    def _look(self) -> None:
        before = self._follower.trouble
        if self._follower.look():
            self._say()
            if (trouble := self._follower.trouble) and trouble != before:
                print(f"greedyfed: {trouble}", file=sys.stderr, flush=True)

    def _say(self) -> None:
        self._body = self._follower.data.encode()
        self._tag = f'"{hashlib.sha256(self._body).hexdigest()[:20]}"'
        self._page = b""  # made anew when it is asked for

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
        elif (path := self.path.partition("?")[0]) == "/":
            self._answer(HTTPStatus.OK, self.server.fresh_page(), "text/html; charset=utf-8")
        elif path == "/data.json":
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
