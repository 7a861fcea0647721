"""A real federation of processes on loopback: TLS, registered keys, executors of their own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import psutil

from experiments.flower import PROJECT, FlowerError, Flwr, bin_path, environment, tail
from experiments.simulation import free_port

KEYPAIR = PROJECT / "docker" / "keypair.py"
Value = TypeVar("Value")


def wait_for(what: Callable[[], Value], seconds: float, description: str) -> Value:
    """The first true value of what(); raises FlowerError when there is none in time."""
    deadline = time.monotonic() + seconds
    while not (value := what()):
        if time.monotonic() > deadline:
            raise FlowerError(f"{description}: not within {seconds:g} s")
        time.sleep(0.2)
    return value


class Federation:
    """A SuperLink with its executor, and SuperNodes; any may be killed and started anew.

    Everything lies in `root`: credentials, logs, the SuperLink's database. Use as a context
    manager, which ends all processes.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.port = root, free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._commands: dict[str, tuple[str, ...]] = {}
        self.ports: dict[str, int] = {}
        (root / "operator").mkdir(parents=True)
        self.make_ca("ca")
        self._certify("server", "ca")
        secret = root / "secret"
        secret.write_text("a secret of the executors, thirty-two bytes or more", encoding="utf-8")
        secret.chmod(0o600)
        self.flwr = Flwr(root / "operator", self.address, root / "ca.crt")

    def __enter__(self) -> "Federation":
        return self

    def __exit__(self, *exception: object) -> None:
        for name in list(self.processes):
            self.kill(name)

    # ---- credentials ----------------------------------------------------------------------------

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.root, check=True, capture_output=True)

    def make_ca(self, name: str) -> None:
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        out = ["-keyout", f"{name}.key", "-out", f"{name}.crt", "-subj", f"/CN={name}"]
        use = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
        self._openssl("req", "-x509", *key, "-days", "30", *out, *use)

    def _certify(self, name: str, ca: str) -> None:
        (self.root / "ext").write_text(
            "subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=CA:FALSE\n",
            encoding="utf-8",
        )
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        out = ["-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", "/CN=localhost"]
        self._openssl("req", "-new", *key, *out)
        sign = ["-CA", f"{ca}.crt", "-CAkey", f"{ca}.key", "-CAcreateserial", "-days", "30"]
        files = ["-in", f"{name}.csr", "-out", f"{name}.pem", "-extfile", "ext"]
        self._openssl("x509", "-req", *files, *sign)

    def make_key(self, name: str) -> None:
        """Make a key pair, NAME and NAME.pub."""
        private, public = self.root / name, self.root / f"{name}.pub"
        subprocess.run([sys.executable, str(KEYPAIR), str(private), str(public)], check=True)

    def register(self, name: str) -> None:
        """Make a key pair for a client and register it under the client's id."""
        self.make_key(name)
        public = str(self.root / f"{name}.pub")
        answer = self.flwr.json("supernode", "register", public, options=("--name", name))
        if not answer.get("success"):
            raise FlowerError(f"{name} cannot be registered: {answer}")

    # ---- processes ------------------------------------------------------------------------------

    def _start(self, name: str, *command: str) -> None:
        self._commands[name] = command
        home = self.root / f"home-{name}"
        (home / "cwd").mkdir(parents=True, exist_ok=True)
        with open(self.root / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(bin_path(command[0])), *command[1:]],
                cwd=home / "cwd",
                env=environment(home),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start_superlink(self) -> None:
        root = self.root
        tls = ["--ssl-ca-certfile", f"{root}/ca.crt", "--ssl-certfile", f"{root}/server.pem"]
        tls += ["--ssl-keyfile", f"{root}/server.key", "--enable-supernode-auth"]
        executor = ["--isolation", "process", "--superexec-auth-secret-file", f"{root}/secret"]
        place = ["--host", "127.0.0.1", "--port", str(self.port), "--database", f"{root}/state.db"]
        self._start("superlink", "flower-superlink", *tls, *executor, *place)

    def start_executor(self) -> None:
        trust = ["--root-certificates", f"{self.root}/ca.crt"]
        place = ["--runtime-api-address", self.address]
        secret = ["--superexec-auth-secret-file", f"{self.root}/secret"]
        self._start("executor", "flower-superexec", *trust, *place, *secret)

    def start_node(self, name: str, node_config: str, key: str = "", ca: str = "ca") -> None:
        port = self.ports.setdefault(name, free_port())
        link = ["--superlink", self.address, "--root-certificates", f"{self.root}/{ca}.crt"]
        identity = ["--auth-supernode-private-key", f"{self.root}/{key or name}"]
        place = ["--host", "127.0.0.1", "--port", str(port), "--node-config", node_config]
        self._start(name, "flower-supernode", *link, *identity, *place)

    def pids(self, name: str) -> list[int]:
        """A process of the federation and all that it started."""
        process = psutil.Process(self.processes[name].pid)
        return [process.pid, *(child.pid for child in process.children(recursive=True))]

    def apps(self, name: str, of: str) -> list[int]:
        """The flwr-serverapp or flwr-clientapp processes that a process of the federation runs."""
        found = []
        for pid in self.pids(of) if self.processes[of].poll() is None else []:
            with suppress(psutil.Error):
                if name in " ".join(psutil.Process(pid).cmdline()):
                    found.append(pid)
        return found

    def crash(self, name: str) -> None:
        """Kill a process of the federation with all that it started, as a container dies."""
        pids = self.pids(name) if self.processes[name].poll() is None else []
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.processes[name].wait(20)

    def revive(self) -> None:
        """Start what has ended anew, as systemd and Docker do."""
        for name, process in list(self.processes.items()):
            if process.poll() is not None:
                self._start(name, *self._commands[name])

    def kill(self, name: str) -> None:
        """Crash a process for good."""
        self.crash(name)
        del self.processes[name]

    # ---- the operator ---------------------------------------------------------------------------

    def start(self, clients: dict[str, str]) -> None:
        """Start the server side, and clients with registered keys: client id -> node config."""
        self.start_superlink()
        wait_for(lambda: self.flwr.json("supernode", "list").get("success"), 60, "SuperLink")
        self.start_executor()
        for name, node_config in clients.items():
            self.register(name)
            self.start_node(name, node_config)
        self.wait_online(len(clients))

    def wait_online(self, count: int) -> None:
        """Until that many SuperNodes are online; raises FlowerError when it takes a minute."""
        try:
            wait_for(lambda: self.online() == count, 60, f"{count} clients online")
        except FlowerError as error:
            logs = [
                tail((self.root / f"{name}.log").read_text(encoding="utf-8"))
                for name in self.processes
            ]
            raise FlowerError("\n".join([str(error), *logs])) from None

    def online(self) -> int:
        nodes = self.flwr.json("supernode", "list").get("nodes", [])
        return sum(node["status"] == "online" for node in nodes)

    def status(self, run_id: str) -> str:
        runs = self.flwr.json("list", "--run-id", run_id).get("runs")
        return str(runs[0]["status"]) if runs else "unknown"

    def wait_for_end(self, run_id: str, seconds: float) -> str:
        """How Flower says that the run ended."""

        def ended() -> str:
            status = self.status(run_id)
            return status if status.startswith("finished") else ""

        return wait_for(ended, seconds, "end of the run")
