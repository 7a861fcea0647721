"""docker-compose.yml: a whole run on it, and what its gateway and its SuperLink refuse.

Needs a Docker engine: `make test-cluster`. Its images are built here, and stay.
"""

import json
import subprocess

import pytest
from rich.console import Console

from common.config import RunConfig
from experiments.cluster import CONFIG, train
from experiments.progress import RoundProgress
from experiments.settings import read_toml
from server_app.run_directory import SUMMARY, read_history
from tests.containers import PROJECT, docker, inside

pytestmark = pytest.mark.cluster
IN_THE_SITE = """
import http.client, ssl, sys
tls = ssl.create_default_context(cafile="/credentials/ca.crt")
for path in sys.argv[1:]:
    connection = http.client.HTTPSConnection("gateway", 9443, context=tls, timeout=10)
    connection.request("POST", path, b"", {"Content-Type": "application/protobuf"})
    print(connection.getresponse().status)
"""
CONNECT = """
import socket, sys
for address in sys.argv[1:]:
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=3).close()
        print("reached")
    except OSError as error:
        print(type(error).__name__)
"""


def addresses(cluster, service, port):
    """Where a service listens, on each of its networks."""
    form = "{{range .NetworkSettings.Networks}}{{.IPAddress}} {{end}}"
    found = docker("inspect", "--format", form, cluster.container(service))
    return [f"{address}:{port}" for address in found.split()]


def other_node(script):
    """What flower-supernode prints on site 0's network, with the cluster's CA in /credentials."""
    command = ["docker", "run", "--rm", "--network", f"{PROJECT}_site-0"]
    command += ["--volume", f"{PROJECT}_operator:/credentials:ro", "greedyfed", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_ten_rounds(cluster, tmp_path):
    keys = {"num-clients": cluster.nodes, "output-dir": "/results/test"}
    config = RunConfig.from_flat(read_toml(CONFIG) | keys)
    with RoundProgress(Console(), config.num_rounds) as progress:
        directory = train(cluster, config, tmp_path, progress)
    history = read_history(directory)
    assert [record["round"] for record in history] == list(range(1, 11))
    assert all(record["failures"] == {} for record in history)
    assert {c for record in history[:2] for c in record["cohort"]} == {
        f"client-{i}" for i in range(5)
    }
    assert all(len(record["cohort"]) == len(record["shapley"]) == 3 for record in history)
    assert history[-1]["test_accuracy"] > 0.6
    assert history[-1]["val_loss"] < history[0]["val_loss"]
    clients = json.loads((directory / SUMMARY).read_text())["clients"]
    assert len(clients) == 5


def test_the_gateway_passes_the_fleet_api_only(cluster):
    refused = [
        "/v1/control/list-runs",
        "/v1/control/start-run",
        "/v1/runtime/acquire-task",
        "/health",
        "/docs",
        "/v1/fleet/",
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/%2e%2e/control/list-runs",
        "/v1/control/..%2ffleet/pull-messages",
        "/v1/control/list-runs/../../fleet/pull-messages",
    ]
    answers = inside(cluster, "supernode-0", "python", "-c", IN_THE_SITE, *refused)
    assert answers == ["403"] * len(refused)
    passed = inside(cluster, "supernode-0", "python", "-c", IN_THE_SITE, "/v1/fleet/pull-messages")
    assert passed == ["401"]  # the SuperLink's own answer to a request without a signature


def test_a_site_reaches_the_gateway_only(cluster):
    others = [*addresses(cluster, "superlink", 8000), *addresses(cluster, "supernode-1", 9094)]
    assert len(others) == 3  # two networks of the SuperLink, one of the other site
    known = ["gateway:9443", "supernode-0:9094"]
    for service in ("supernode-0", "clientapp-0"):
        reached = inside(cluster, service, "python", "-c", CONNECT, *others, *known)
        assert "reached" not in reached[: len(others)]
        assert reached[len(others) :] == ["reached", "reached"]


def test_each_service_sees_its_own_secrets_only(cluster):
    listed = inside(cluster, "supernode-0", "stat", "-c", "%a %u %n", "/credentials/node.key")
    assert listed == ["600 10001 /credentials/node.key"]
    assert set(inside(cluster, "supernode-0", "ls", "/credentials")) == {
        "ca.crt",
        "node.key",
        "node.pub",
    }
    assert inside(cluster, "clientapp-0", "ls", "/data") == ["client-0.npz"]
    assert inside(cluster, "serverapp", "ls", "/data") == ["server.npz"]
    assert set(inside(cluster, "serverapp", "ls", "/credentials")) == {"ca.crt", "executor.secret"}
    for service in ("supernode-0", "clientapp-0", "superlink", "serverapp", "gateway"):
        assert inside(cluster, service, "id", "-u") == ["10001"]
        assert inside(cluster, service, "grep", "CapBnd", "/proc/self/status") == [
            "CapBnd:\t0000000000000000"
        ]


def test_a_node_without_a_registered_key_is_refused(cluster):
    status, output = other_node(
        "python /opt/greedyfed/keypair.py /tmp/node.key /tmp/node.pub && flower-supernode "
        "--superlink gateway:9443 --root-certificates /credentials/ca.crt "
        "--auth-supernode-private-key /tmp/node.key"
    )
    assert status != 0
    assert "[code: 2004]" in output


def test_a_node_with_a_foreign_ca_refuses_the_gateway(cluster):
    status, output = other_node(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -noenc -subj /CN=foreign "
        "-keyout /tmp/ca.key -out /tmp/ca.crt && "
        "python /opt/greedyfed/keypair.py /tmp/node.key /tmp/node.pub && flower-supernode "
        "--superlink gateway:9443 --root-certificates /tmp/ca.crt "
        "--auth-supernode-private-key /tmp/node.key"
    )
    assert status != 0
    assert "CERTIFICATE_VERIFY_FAILED" in output


def test_a_second_start_changes_nothing(cluster):
    before = inside(cluster, "supernode-0", "md5sum", "/credentials/node.key")
    cluster("up", "--detach")
    assert inside(cluster, "supernode-0", "md5sum", "/credentials/node.key") == before
    assert cluster("logs", "--no-color", "register").count("already registered") >= cluster.nodes
