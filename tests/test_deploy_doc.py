"""docs/deploy.md, followed word by word: every machine has a file tree and containers of its own.

Only placeholders are replaced: names, ports, and `docker compose` where there is only
docker-compose. What people do between machines is done here: hand a file over, stop a run.
Needs a Docker engine: `make test-cluster`.
"""

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path

import pytest

from experiments.cluster import no_engine
from experiments.flower import PROJECT
from experiments.loopback import wait_for
from experiments.simulation import free_port
from server_app.run_directory import SUMMARY, read_history
from tests.checkout import copy_checkout

pytestmark = pytest.mark.cluster
PAGE = PROJECT / "docs" / "deploy.md"
BLOCK = re.compile(r"^```(\w+) ([^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VERSION = "# another version\n"
#: What .env says; variables would win over it, and another test may have set them.
SETTINGS = ("COMPOSE_PROJECT_NAME", "CONTROL_PORT", "GATEWAY_NAMES", "GATEWAY_PORT")
CLINICS = ("clinic-a", "clinic-b", "clinic-c")


class Machine:
    """A folder that stands for a computer: a home, and a checkout with a role in it."""

    def __init__(self, home: Path, role: str, placeholders: dict[str, str]) -> None:
        self.home, self._placeholders = home, placeholders
        checkout = home / "greedyfed"
        self.folder = checkout / "docker" / role
        copy_checkout(checkout)
        # `make install` finds its work done: this environment, with the checkout's own code.
        command = checkout / ".venv" / "bin" / "greedyfed"
        command.parent.mkdir(parents=True)
        command.write_text(
            f'#!/bin/sh\nPYTHONPATH={checkout} exec {sys.executable} -m experiments.cli "$@"\n'
        )
        command.chmod(0o755)
        (checkout / ".venv" / ".installed").touch()

    def text(self, text: str) -> str:
        for placeholder, value in self._placeholders.items():
            text = text.replace(placeholder, value)
        return text

    def start(self, script: str, **streams) -> subprocess.Popen:
        return subprocess.Popen(
            ["bash", "-euc", self.text(script)],
            cwd=self.folder,
            env={k: v for k, v in os.environ.items() if k not in SETTINGS}
            | {"HOME": str(self.home)},
            start_new_session=True,
            text=True,
            **streams,
        )

    def do(self, script: str) -> str:
        """What a script prints; it must succeed."""
        process = self.start(script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output, _ = process.communicate(timeout=300)
        assert process.returncode == 0, f"{self.text(script)}\n{output}"
        return output

    def down(self) -> None:
        self.do("docker compose down --volumes --remove-orphans")


class Deployment:
    """The machines of the page, and what has been done of it."""

    def __init__(self, root: Path) -> None:
        bridge = ["docker", "network", "inspect", "bridge", "--format"]
        form = "{{(index .IPAM.Config 0).Subnet}}"
        done = subprocess.run([*bridge, form], capture_output=True, text=True, check=True)
        # The first address is the engine's; one that has just been installed does not tell it.
        self.host = str(next(ip_network(done.stdout.strip()).hosts()))
        self.port = free_port()
        plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
        common = {
            "sudo ": "",
            "fl.example.org": self.host,
            "9443": str(self.port),
            "9093": str(free_port()),
        }
        if plugin.returncode:
            common["docker compose"] = "docker-compose"
        name = f"greedyfed-doc-{os.getpid()}"
        self.server = Machine(root / "server", "server", common | {"greedyfed-server": name})
        self.clients = {}
        for clinic in CLINICS:
            names = {"clinic-a": clinic, "greedyfed-client": f"{name}-{clinic}"}
            self.clients[clinic] = Machine(root / clinic, "client", common | names)
        self.to_do = [
            (section.partition("\n")[0], *match.groups())
            for section in PAGE.read_text().split("\n## ")
            for match in BLOCK.finditer(section)
        ]
        self.done: set[tuple[str, ...]] = set()
        self.run: subprocess.Popen | None = None

    def follow(self, section: str, *clients: str) -> Iterator[str]:
        """Do a section's blocks, one a step, a client's for each of them; gives what they print."""
        for block in self.to_do:
            title, language, where, text = block
            if title != section:
                continue
            machine, *more = where.split()
            names = [name for name in more if name in CLINICS] or clients or ("clinic-a",)
            output = ""
            if where == "hand-over":
                for name in names:
                    self._hand_over(text, name)
            elif more == ["run"]:
                self.run = self.server.start(text, stdout=sys.stderr)
            else:
                if more == ["new"]:
                    self.server.down()  # the volumes too: nothing is left but the folder
                at = [self.server] if machine == "server" else [self.clients[n] for n in names]
                for each in at:
                    if language == "bash":
                        output += each.do(text)
                    else:
                        (each.folder / more[0]).write_text(each.text(text))
            self.done.add(block)
            yield output

    def all_of(self, section: str, *clients: str) -> None:
        for _ in self.follow(section, *clients):
            pass

    def _hand_over(self, text: str, client: str) -> None:
        machines = {"server": self.server, "client": self.clients[client]}
        for line in self.clients[client].text(text).splitlines():
            source, file, _, target, new = line.split()
            shutil.copyfile(machines[source].folder / file, machines[target].folder / new)

    def new_version(self) -> None:
        """A checkout of another commit on every machine."""
        for machine in (self.server, *self.clients.values()):
            with open(machine.folder.parents[1] / "docker" / "healthcheck.py", "a") as file:
                file.write(VERSION)

    def close(self) -> None:
        if self.run and self.run.poll() is None:
            self.run.kill()
        for machine in (self.server, *self.clients.values()):
            if (machine.folder / ".env").exists():
                machine.down()

    # ---- what is looked at -----------------------------------------------------------------------

    @property
    def directory(self) -> Path:
        """The run directory, as the operator sees it."""
        return next((self.server.folder / "results").glob("*/history.jsonl"), Path("-/-")).parent

    def wait_for_round(self, what=bool) -> list[dict]:
        """The history, as soon as what(history) holds; the run must go on until then."""

        def holds():
            history = read_history(self.directory)
            assert what(history) or self.run.poll() is None, "the run has ended"
            return history if what(history) else None

        return wait_for(holds, 120, "round")

    def members(self) -> dict[str, str]:
        """Each member, and how `register` says that it stands."""
        lines = self.server.do("docker compose run --rm register").splitlines()
        return dict(re.findall(r"^(\S+): already registered, (.+)$", "\n".join(lines), re.M))

    def wait_online(self, *clients: str) -> None:
        online = dict.fromkeys(clients, "online")
        wait_for(lambda: self.members() == online, 90, f"{clients} online")

    def certificate_holds_for(self, name: str) -> bool:
        trust = ssl.create_default_context(cafile=self.server.folder / "ca.crt")
        with socket.create_connection((self.host, self.port), timeout=10) as connection:
            try:
                trust.wrap_socket(connection, server_hostname=name).close()
            except ssl.SSLCertVerificationError:
                return False
        return True


@pytest.fixture
def deployment(tmp_path):
    if why_not := no_engine():
        if os.environ.get("GREEDYFED_REQUIRE_DOCKER") == "1":
            pytest.fail(why_not)
        pytest.skip(why_not)
    deployment = Deployment(tmp_path)
    parts = tmp_path / "parts"
    partition = ["partition", "--dataset", "digits", "--num-clients", "3", "--out", str(parts)]
    command = [sys.executable, "-m", "experiments.cli", *partition]
    subprocess.run(command, check=True, capture_output=True, cwd=PROJECT)
    shutil.move(parts / "server.npz", deployment.server.home)
    for i, (clinic, machine) in enumerate(deployment.clients.items()):
        shutil.move(parts / f"client-{i}.npz", machine.home / f"{clinic}.npz")
    try:
        yield deployment
    finally:
        deployment.close()


def test_the_page_word_by_word(deployment):
    server, clients = deployment.server, deployment.clients

    deployment.all_of("The server")
    deployment.all_of("Each client", "clinic-a", "clinic-b")
    deployment.wait_online("clinic-a", "clinic-b")
    secret = clients["clinic-a"].folder / "credentials" / "node.key"
    assert (secret.stat().st_mode & 0o777, secret.stat().st_uid) == (0o600, 10001)

    steps = deployment.follow("A run")
    next(steps), next(steps)
    history = deployment.wait_for_round()
    assert set(history[0]["cohort"]) == {"clinic-a", "clinic-b"}
    assert deployment.directory.name in next(steps)

    # What may be done while a run goes on: a third comes, the second goes, the first has a new key.
    deployment.all_of("Each client", "clinic-c")
    deployment.wait_for_round(lambda history: "clinic-c" in history[-1]["cohort"])

    steps = deployment.follow("Removing a client")
    next(steps)
    refused = "docker compose logs --no-color supernode | grep -c -F '[code: 2004]' || true"
    wait_for(lambda: int(clients["clinic-b"].do(refused)), 90, "clinic-b refused")
    next(steps)

    old = secret.read_bytes()
    deployment.all_of("A new key for a client")
    assert secret.read_bytes() != old
    deployment.wait_online("clinic-a", "clinic-c")

    assert deployment.certificate_holds_for(deployment.host)
    assert not deployment.certificate_holds_for("fl.example.net")
    deployment.all_of("The server's certificates and names")
    wait_for(lambda: deployment.certificate_holds_for("fl.example.net"), 60, "certificate")
    assert deployment.certificate_holds_for(deployment.host)

    done = len(read_history(deployment.directory))
    both = {"clinic-a", "clinic-c"}
    deployment.wait_for_round(lambda h: len(h) > done + 1 and set(h[-1]["shapley"]) == both)
    deployment.run.send_signal(signal.SIGINT)
    assert deployment.run.wait(60) == 128 + signal.SIGINT
    before = read_history(deployment.directory)
    assert not (deployment.directory / SUMMARY).exists()

    deployment.new_version()
    deployment.all_of("Upgrading", "clinic-a", "clinic-c")
    for machine, service in ((server, "serverapp"), (clients["clinic-a"], "supernode")):
        look = f"docker compose exec -T {service} tail -1 /opt/greedyfed/healthcheck.py"
        assert machine.do(look).strip() == VERSION.strip()
    assert deployment.run.wait(240) == 0
    history = read_history(deployment.directory)
    assert [record["round"] for record in history] == list(range(1, 21))
    assert history[: len(before)] == before
    after = history[len(before) :]
    assert all(set(record["cohort"]) <= both for record in after)
    assert {client for record in after for client in record["shapley"]} == both
    # The value of clinic-a is that of all its rounds, whatever its key was.
    summary = json.loads((deployment.directory / SUMMARY).read_text())
    values = {client["client_id"]: client["value"] for client in summary["clients"]}
    assert set(values) == set(CLINICS)
    of_a = [r["shapley"]["clinic-a"] for r in history if "clinic-a" in r["shapley"]]
    assert values["clinic-a"] == pytest.approx(sum(of_a) / len(of_a))

    deployment.all_of("Backup")
    assert deployment.members().keys() == {"clinic-a", "clinic-c"}
    ca = (server.folder / "ca.crt").read_bytes()
    deployment.all_of("Another CA", "clinic-a", "clinic-c")
    assert (server.folder / "ca.crt").read_bytes() != ca
    deployment.wait_online("clinic-a", "clinic-c")

    assert deployment.done == set(deployment.to_do), "a block of the page was not followed"
