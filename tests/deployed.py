"""A real federation of processes on loopback: TLS, registered keys, executors of their own."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

BIN = Path(sys.executable).parent
KEYPAIR = Path(__file__).parents[1] / "docker" / "keypair.py"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(what, seconds: float, description: str) -> Any:
    """The first true value of what()."""
    deadline = time.monotonic() + seconds
    while not (value := what()):
        assert time.monotonic() < deadline, f"{description}: not within {seconds:g} s"
        time.sleep(0.2)
    return value


class Federation:
    """A SuperLink with its executor, and SuperNodes; any may be killed and started anew."""

    def __init__(self, root: Path) -> None:
        self.root, self.port = root, free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ports: dict[str, int] = {}
        self.home = root / "operator"
        self.home.mkdir(parents=True)
        self.make_ca("ca")
        self._certify("server", "ca")
        secret = root / "secret"
        secret.write_text("a secret of the executors, thirty-two bytes or more")
        secret.chmod(0o600)
        (self.home / "config.toml").write_text(
            f'[superlink.op]\naddress = "{self.address}"\nroot-certificates = "{root}/ca.crt"\n'
        )

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
            "subjectAltName=IP:127.0.0.1,DNS:localhost\nbasicConstraints=CA:FALSE\n"
        )
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        out = ["-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", "/CN=localhost"]
        self._openssl("req", "-new", *key, *out)
        sign = ["-CA", f"{ca}.crt", "-CAkey", f"{ca}.key", "-CAcreateserial", "-days", "30"]
        files = ["-in", f"{name}.csr", "-out", f"{name}.pem", "-extfile", "ext"]
        self._openssl("x509", "-req", *files, *sign)

    def register(self, name: str) -> None:
        """Make a key pair for a client and register it under the client's id."""
        private, public = self.root / name, self.root / f"{name}.pub"
        subprocess.run([sys.executable, KEYPAIR, private, public], check=True)
        answer = self.flwr("supernode", "register", str(public), "op", "--name", name)
        assert answer["success"], answer

    # ---- processes ------------------------------------------------------------------------------

    def environment(self, home: Path) -> dict[str, str]:
        return os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }

    def _start(self, name: str, *command: str) -> None:
        home = self.root / f"home-{name}"
        (home / "cwd").mkdir(parents=True, exist_ok=True)
        with open(self.root / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                cwd=home / "cwd",
                env=self.environment(home),
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

    def serverapp(self) -> int | None:
        """The process that runs the ServerApp now."""
        for process in psutil.process_iter():
            try:
                command = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if "flwr-serverapp" in command and self.address in command:
                return process.pid
        return None

    def kill(self, name: str, sign: signal.Signals = signal.SIGKILL) -> None:
        """End a process of the federation with all that it started."""
        pids = self.pids(name) if self.processes[name].poll() is None else []
        for pid in pids:
            try:
                os.kill(pid, sign)
            except ProcessLookupError:
                continue
        self.processes.pop(name).wait(20)

    def stop(self) -> None:
        for name in list(self.processes):
            self.kill(name)

    # ---- the operator ---------------------------------------------------------------------------

    def flwr(self, *arguments: str) -> dict[str, Any]:
        done = subprocess.run(
            [str(BIN / "flwr"), *arguments, "--format", "json"],
            env=self.environment(self.home),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        try:
            answer: dict[str, Any] = json.loads(done.stdout)
        except json.JSONDecodeError:
            return {"success": False, "error-message": done.stdout + done.stderr}
        return answer

    def online(self) -> int:
        nodes = self.flwr("supernode", "list", "op").get("nodes", [])
        return sum(node["status"] == "online" for node in nodes)

    def status(self, run_id: str) -> str:
        runs = self.flwr("list", "--run-id", run_id, "op").get("runs")
        return str(runs[0]["status"]) if runs else "unknown"
