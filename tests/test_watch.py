"""`greedyfed watch`: a run that goes, ends, is cut short or deleted; by HTTP, in a terminal."""

import fcntl
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from playwright.sync_api import expect
from rich.console import Console

from experiments.run_data import RunDataError, find_runs, read_run
from experiments.terminal import sparkline, view, watch_here
from experiments.watch import RunServer, WatchError, follow
from server_app.run_directory import RunDirectory
from tests.browser import open_page
from tests.federation import history_of, run_with_a_failure


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return run_with_a_failure(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def going(made, tmp_path):
    """A run after its second round, and the rest of it."""
    path = tmp_path / made.name
    path.mkdir()
    shutil.copy(made / "config.json", path)
    lines = (made / "history.jsonl").read_text().splitlines(keepends=True)
    (path / "history.jsonl").write_text("".join(lines[:2]))
    return path, lines[2:]


def append(path, text):
    with open(path / "history.jsonl", "a") as file:
        file.write(text)


@contextmanager
def served(path, host="127.0.0.1"):
    with RunServer(follow(path), host, 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server, target="/data.json", method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    connection.request(method, target, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def inside(server):
    """What the page holds when it is opened."""
    page = ask(server, "/")[1].decode()
    return json.loads(page.split('id="data">')[1].split("</script>")[0])


def rounds(server):
    return json.loads(ask(server)[1])["runs"][0]["rounds"]["round"]


def test_rounds_come_as_they_finish(going):
    path, rest = going
    with served(path) as server:
        assert rounds(server) == [1, 2]
        append(path, rest[0])
        assert rounds(server) == [1, 2, 3]
        append(path, rest[1][:50])  # a line under way
        assert rounds(server) == [1, 2, 3]
        append(path, rest[1][50:])
        assert rounds(server) == [1, 2, 3, 4]


def test_it_survives_the_runs_end_a_deleted_directory_and_its_return(going, made):
    path, _ = going
    with served(path) as server:
        for name in ("history.jsonl", "summary.json", "state.safetensors"):
            shutil.copy(made / name, path)
        told = json.loads(ask(server)[1])["runs"][0]
        assert (told["state"], told["rounds"]["round"][-1]) == ("complete", 6)
        shutil.rmtree(path)
        gone = f"{path}: the run's folder is gone; the figures are the last seen"
        for data in (json.loads(ask(server)[1]), inside(server)):
            assert data["trouble"] == gone
            assert data["runs"][0]["rounds"]["round"][-1] == 6
        shutil.copytree(made, path)
        assert rounds(server)[-1] == 6
        assert inside(server)["trouble"] is None


def test_a_new_tab_shows_what_another_has_been_told(going):
    path, rest = going
    with served(path) as server:
        append(path, rest[0])
        told = json.loads(ask(server)[1])
        assert inside(server) == told
        assert told["runs"][0]["rounds"]["round"] == [1, 2, 3]


def test_a_run_that_has_lost_its_folder_is_not_running(small):
    directory = RunDirectory(small)
    directory.load()
    with served(directory.path) as server:
        assert inside(server)["runs"][0]["state"] == "running"
        directory.close()
        shutil.rmtree(directory.path)
        assert inside(server)["runs"][0]["state"] == "stopped"


def test_whatever_a_file_holds_the_server_answers(going, capsys):
    path, _ = going
    with served(path) as server:
        about = json.loads((path / "config.json").read_text())
        about["config"]["cumulative-alpha"] = "half"
        (path / "config.json").write_text(json.dumps(about))
        data = json.loads(ask(server)[1])
        assert "config.json: cannot be read: config.cumulative-alpha" in data["trouble"]
        assert data["runs"][0]["rounds"]["round"] == [1, 2]
        assert capsys.readouterr().err == f"greedyfed: {data['trouble']}\n"
        about["config"]["cumulative-alpha"] = 0.5
        (path / "config.json").write_text(json.dumps(about))
        assert inside(server)["trouble"] is None


def test_what_has_not_changed_is_not_sent_again(going):
    path, rest = going
    with served(path) as server:
        answer, _ = ask(server)
        tag = answer.headers["ETag"]
        again, body = ask(server, **{"If-None-Match": tag})
        assert (again.status, body) == (304, b"")
        append(path, rest[0])
        assert ask(server, **{"If-None-Match": tag})[0].status == 200


def test_the_page_and_its_data_agree_with_history(made):
    with served(made) as server:
        page = ask(server, "/?x=1")[1].decode()
        data = json.loads(ask(server)[1])
        assert inside(server) == data
    assert " data-live" in page[:100]
    assert data["runs"][0]["rounds"]["val_loss"] == [r["val_loss"] for r in history_of(made)]


def test_little_is_let_in(made):
    with served(made) as server:
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert ask(server, method=method)[0].status == 501
        for target in ("/config.json", "/../config.json", "/page/page.js", "/x?/"):
            assert ask(server, target)[0].status == 404
        head, body = ask(server, "/", method="HEAD")
        assert (head.status, body) == (200, b"")
        assert int(head.headers["Content-Length"]) > 1e6
        policy = head.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
            answer, body = ask(server, Host=host)
            assert (answer.status, body) == (421, b"not a name of this machine\n")
        for host in ("localhost", "LOCALHOST:1", "127.0.0.1:8765", "[::1]:8765"):
            assert ask(server, Host=host)[0].status == 200


def test_addresses_that_cannot_be_bound(made):
    with served(made) as server, pytest.raises(WatchError, match="--port 0"):
        RunServer(follow(made), "127.0.0.1", server.server_address[1])
    with pytest.raises(WatchError, match="cannot be bound"):
        RunServer(follow(made), "no.such.host.invalid", 0)


def test_a_folder_means_its_newest_run(made, tmp_path):
    shutil.copytree(made, tmp_path / "a")
    shutil.copytree(made, tmp_path / "b")
    os.utime(tmp_path / "a" / "config.json")
    assert follow(tmp_path).path == tmp_path / "a"
    with pytest.raises(RunDataError, match="no such folder"):
        follow(tmp_path / "nowhere")


def test_the_terminal_shows_a_run_under_way(small):
    directory = RunDirectory(small)
    directory.load()
    follower = follow(directory.path)
    assert "running, 0 of 6 rounds" in shown(view(follower))
    directory.close()
    assert follower.look()
    assert "stopped, 0 of 6 rounds" in shown(view(follower))


def shown(thing):
    console = Console(width=120)
    with console.capture() as capture:
        console.print(thing)
    return capture.get()


def test_the_terminal_follows_to_the_end(going, made):
    path, rest = going
    lock = open(path / ".lock", "w")  # noqa: SIM115  as the process that runs it has it
    fcntl.flock(lock, fcntl.LOCK_EX)
    follower = follow(path)
    text = shown(view(follower))
    assert "2 of 6 rounds" in text
    assert "test accuracy" in text

    def finish():
        for line in rest:
            append(path, line)
            time.sleep(0.1)
        for name in ("state.safetensors", "summary.json"):
            shutil.copy(made / name, path)
        lock.close()

    thread = threading.Thread(target=finish)
    thread.start()
    console = Console(width=120)
    with console.capture() as capture:
        watch_here(follower, console)
    thread.join()
    text = capture.get()
    assert "complete, 6 of 6 rounds" in text
    assert "Most valuable clients" in text
    assert "1 of 4785 parameters are NaN or Inf" in text
    shutil.rmtree(path)
    follower.look()
    assert "the run's folder is gone" in shown(view(follower))


def test_the_terminal_ends_when_the_run_stops(small):
    directory = RunDirectory(small)
    directory.load()
    follower = follow(directory.path)
    threading.Timer(0.3, directory.close).start()
    console = Console(width=120)
    directory.note({"event": "asked", "round": 1, "clients": ["partition-1"]})
    with console.capture() as capture:
        watch_here(follower, console)
    assert "stopped, 0 of 6 rounds" in capture.get()
    assert "--resume goes on with it" in capture.get()


def test_no_client_steers_the_terminal(going):
    path, _ = going
    text = (path / "history.jsonl").read_text().replace("NaN or Inf", "\\u001b[2J[red]gone")
    (path / "history.jsonl").write_text(text)
    told = shown(view(follow(path)))
    assert "\\x1b[2J[red]gone" in told
    assert "\x1b[2J" not in told


def test_a_sparkline():
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([1.0, float("inf"), 1.0]) == "▁ ▁"
    assert len(sparkline([float(i) for i in range(1000)])) == 60


def test_it_follows_a_run_that_goes(tmp_path):
    keys = ("num-clients=6", "num-rounds=120", f"output-dir={tmp_path}")
    options = [option for key in keys for option in ("-c", key)]
    command = [sys.executable, "-m", "experiments.cli", "run", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not find_runs(tmp_path):
        assert process.poll() is None
        time.sleep(0.05)
    follower, seen = follow(tmp_path), []
    while follower.run.state != "complete":
        if follower.look():
            assert follower.trouble is None
            seen.append((follower.run.state, len(follower.run.rounds)))
        time.sleep(0.02)
    process.wait()
    follower.look()
    counts = [count for _, count in seen]
    assert counts == sorted(counts)
    assert len({count for state, count in seen if state == "running"}) > 3
    assert follower.run.rounds == history_of(follower.path)


def test_the_command_ends_with_ctrl_c(made):
    command = [sys.executable, "-m", "experiments.cli", "watch", str(made), "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    url = process.stdout.readline()
    assert url.startswith("http://127.0.0.1:")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "")


@pytest.mark.browser
def test_the_page_updates_itself(browser, going, made):
    path, rest = going
    lines = (path / "history.jsonl").read_text()
    (path / "history.jsonl").write_text("")  # before the first round
    with served(path) as server:
        page, complaints = open_page(browser, server.url)
        expect(page.locator("#figures")).to_contain_text("of 6, stopped")
        expect(page.locator("#answers")).to_contain_text("No round has ended yet.")
        append(path, lines)
        page.locator("#ledger th", has_text="asked").get_by_role("button").click(timeout=20_000)
        append(path, rest[0])
        drawn = "document.querySelector('#chart-accuracy .plot').data[0].x.length"
        deadline = time.monotonic() + 20
        while page.evaluate(drawn) != 3 and time.monotonic() < deadline:
            page.wait_for_timeout(100)
        assert page.evaluate(drawn) == 3
        head = page.locator("#ledger th", has_text="asked")
        expect(head).to_have_attribute("aria-sort", "descending")  # what was chosen is kept
        for name in ("history.jsonl", "state.safetensors", "summary.json"):
            shutil.copy(made / name, path)
        expect(page.locator("#figures")).to_contain_text("of 6, complete", timeout=15_000)
        told = page.locator("#ledger td[data-column=sum]").first.get_attribute("data-value")
        sums = [c["sum"] for c in page.evaluate("run().clients")]
        assert float(told) in sums
        assert read_run(path).state == "complete"
        shutil.rmtree(path)
        expect(page.locator("#trouble")).to_contain_text("folder is gone", timeout=15_000)
        assert complaints == []
    expect(page.locator("#trouble")).to_contain_text("does not answer", timeout=15_000)
    page.close()
