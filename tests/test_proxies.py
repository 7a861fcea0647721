"""Behind a proxy: this machine is reached past it, others by way of it."""

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from socket import AF_INET6

import pytest

from experiments.flower import FlowerError, environment
from experiments.superlink import SuperLinkError, check_superlink

HEALTHCHECK = Path(__file__).parents[1] / "docker" / "healthcheck.py"
HOSTS = ["127.0.0.1", "localhost", "[::1]"]


class Answer(BaseHTTPRequestHandler):
    """Says yes to everything, and notes what it was asked for."""

    def do_GET(self):
        self.server.asked.append(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *about):
        pass


class Server(ThreadingHTTPServer):
    def __init__(self, host):
        if host == "[::1]":
            self.address_family = AF_INET6
        super().__init__((host.strip("[]"), 0), Answer)
        self.asked = []


@pytest.fixture
def serve():
    servers = []

    def start(host):
        try:
            servers.append(Server(host))
        except OSError as error:
            pytest.skip(f"this machine has no {host}: {error}")
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return servers[-1], f"{host}:{servers[-1].server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.usefixtures("dead_proxies")
@pytest.mark.parametrize("host", HOSTS)
def test_this_machine_is_asked_past_the_proxy(serve, host, tmp_path):
    """By the command, by a health check, and by Flower's processes, which use httpx."""
    server, address = serve(host)
    url = f"http://{address}/health"
    check_superlink(address, None)
    subprocess.run([sys.executable, HEALTHCHECK, url], check=True)
    code = f"import httpx; httpx.get({url!r}).raise_for_status()"
    subprocess.run([sys.executable, "-c", code], check=True, env=environment(tmp_path))
    assert server.asked == ["/health"] * 3


def test_others_are_asked_by_way_of_the_proxy(serve, monkeypatch, tmp_path):
    proxy, address = serve("127.0.0.1")
    monkeypatch.setenv("http_proxy", f"http://{address}")
    check_superlink("superlink.invalid:9093", None)
    code = "import httpx; httpx.get('http://superlink.invalid:9093/health').raise_for_status()"
    subprocess.run([sys.executable, "-c", code], check=True, env=environment(tmp_path))
    assert proxy.asked == ["http://superlink.invalid:9093/health"] * 2


@pytest.mark.usefixtures("dead_proxies")
def test_a_proxy_that_does_not_answer_is_named(monkeypatch):
    with pytest.raises(SuperLinkError, match=r"the proxy that http_proxy names: .*refused.*; mend"):
        check_superlink("superlink.invalid:9093", None)
    monkeypatch.setenv("no_proxy", "superlink.invalid")
    with pytest.raises(SuperLinkError, match=r"no answer: .*is it running"):
        check_superlink("superlink.invalid:9093", None)


#: Variables, and proxies that are not of HTTP: without a package httpx raises for each of them.
NOT_HTTP = [
    {"ALL_PROXY": "socks5://127.0.0.1:9"},
    {"all_proxy": "socks5h://user:secret@127.0.0.1:9"},
    {"https_proxy": "SOCKS5://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"},
    {"HTTP_PROXY": "socks4://127.0.0.1:9"},
    {"all_proxy": "ftp://127.0.0.1:9", "ALL_PROXY": "socks://127.0.0.1:9"},
]


@pytest.fixture
def no_proxies(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.usefixtures("no_proxies")
@pytest.mark.skipif(find_spec("socksio") is not None, reason="httpx knows SOCKS here")
@pytest.mark.parametrize("variables", NOT_HTTP, ids=lambda v: " ".join(v.values()))
def test_a_proxy_that_is_not_of_http(serve, monkeypatch, tmp_path, variables):
    """On this machine Flower needs none; for another one the variable is named, not its value."""
    server, address = serve("127.0.0.1")
    url = f"http://{address}/health"
    code = f"import httpx; httpx.get({url!r}).raise_for_status()"
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with_them = os.environ | {"no_proxy": "127.0.0.1"}
    assert subprocess.run([sys.executable, "-c", code], env=with_them, check=False).returncode
    check_superlink(address, None)
    found = environment(tmp_path)
    subprocess.run([sys.executable, "-c", code], check=True, env=found)
    assert server.asked == ["/health"] * 2
    assert {v for v in found.values() if v in variables.values()} == {
        v for v in variables.values() if v.startswith("http")
    }
    with pytest.raises(
        SuperLinkError, match=r"pip install 'httpx\[socks\]', or unset it$"
    ) as error:
        check_superlink("superlink.invalid:9093", None)
    assert any(f": {name} names a proxy" in str(error.value) for name in variables)
    assert "secret" not in str(error.value)
    monkeypatch.setenv("no_proxy", "*")  # httpx looks at no variable then
    with pytest.raises(SuperLinkError, match="no answer"):
        check_superlink("superlink.invalid:9093", None)


def test_what_flower_says_in_several_lines_is_one():
    assert (
        str(FlowerError("Flower refused the run: \n  no\n\nway "))
        == "Flower refused the run: no way"
    )


@pytest.mark.parametrize(
    ("lower", "upper", "kept"),
    [
        ("", "", ""),
        (".example.org, 10.0.0.5", "", ".example.org,10.0.0.5,"),
        ("", "db", "db,"),
        ("a,,b,localhost", "b,c", "a,b,localhost,c,"),
    ],
)
def test_what_is_reached_past_the_proxy_stays_so(monkeypatch, tmp_path, lower, upper, kept):
    monkeypatch.setenv("no_proxy", lower)
    monkeypatch.setenv("NO_PROXY", upper)
    found = environment(tmp_path)
    here = [host for host in ("localhost", "127.0.0.1", "::1") if host not in kept.split(",")]
    assert found["no_proxy"] == found["NO_PROXY"] == kept + ",".join(here)


def test_a_star_stays_alone(monkeypatch, tmp_path):
    """For Python's urllib it means every host only then."""
    monkeypatch.setenv("NO_PROXY", "*")
    assert environment(tmp_path)["no_proxy"] == "*"
