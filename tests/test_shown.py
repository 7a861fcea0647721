"""What clients and edited files say is shown as it is: no markup, no formula, no steering."""

import csv
import io
import json
import re
import shutil
import subprocess
import sys

import pytest
from rich.console import Console
from rich.progress import Progress

from experiments.ledger import ledger_of
from experiments.ledger_formats import as_csv, as_json, as_markdown
from experiments.progress import RoundProgress
from experiments.report import data_text
from experiments.run_data import read_run
from experiments.status import status
from experiments.summary import summary_table
from experiments.terminal import view
from experiments.watch import follow
from tests.any_client import run_with
from tests.federation import history_of, run_with_a_failure

STRANGE = [
    "[/x]",
    "[red]a[/red]",
    "[link=file:///]a",
    ":smile:",
    "\x1b[2J\x1b]0;title\x07",
    "a\u202eb\u2066c",
    "two\nlines\r\u2028more",
    "<img src=x onerror=alert(1)></script>",
    "a|b`c*d_e~f$g&lt;",
    "[a](http://b)",
    "\\",
    "{0} %s {task.description}",
]


def seen(text):
    """How a text is shown: unprintable characters by their code."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return run_with_a_failure(tmp_path_factory.mktemp("runs"))


@pytest.fixture(params=STRANGE)
def strange(request, made, tmp_path):
    """A text, and a run that has it as a client's id, a reason, a node, an algorithm and a name."""
    path = shutil.copytree(made, tmp_path / made.name)
    text = json.dumps(request.param)
    for name in ("history.jsonl", "events.jsonl", "summary.json"):
        content = (path / name).read_text()
        content = content.replace('"partition-0"', text)
        content = re.sub(r'"[^"]*are NaN or Inf"', lambda m: text, content)
        (path / name).write_text(content)
    refused = {"time": 1.0, "round": 1, "event": "refused"}
    with open(path / "events.jsonl", "a") as file:
        file.write(json.dumps(refused | {"node": request.param, "why": request.param}) + "\n")
    about = json.loads((path / "config.json").read_text())
    about["run-id"] = about["config"]["algorithm"] = about["config"][request.param] = request.param
    (path / "config.json").write_text(json.dumps(about))
    (path / "state.safetensors").unlink()
    return request.param, path


def printed(*shown):
    console = Console(width=300, file=io.StringIO(), force_terminal=False)
    console.print(*shown)
    return console.file.getvalue()


def test_tables_of_a_terminal(strange):
    text, path = strange
    for shown in (status(path), view(follow(path)), summary_table(path)):
        told = printed(shown)
        assert seen(text) in told
        assert all(c.isprintable() or c == "\n" for c in told)
    assert printed(status(path)).count(seen(text)) >= 4  # client, reason, node, why


def test_rounds_as_they_come(strange):
    text, path = strange
    record = next(r for r in history_of(path) if text in r["cohort"])
    for terminal in (True, False):
        console = Console(width=300, file=io.StringIO(), force_terminal=terminal)
        with RoundProgress(console, record["round"]) as progress:
            progress.say(text)
            progress.show(record)
            assert isinstance(progress._bar, Progress)
        told = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())
        assert seen(text) in told
        assert all(c.isprintable() or c in "\n\r" for c in told)


def test_the_ledger_as_markdown(strange):
    text, path = strange
    told = as_markdown(ledger_of(read_run(path)))
    assert all(c.isprintable() or c == "\n" for c in told)
    (row,) = [li for li in told.splitlines() if li.startswith("| ") and shown_by(li) == seen(text)]
    heading = next(li for li in told.splitlines() if li.startswith("| client"))
    assert len(cells(row)) == len(cells(heading))
    assert not re.search(r"(?<!\\)<", row)
    assert told.splitlines()[0].startswith("# Contributions to ")


def cells(line):
    return re.split(r"(?<!\\)(?:\\\\)*\|", line)


def shown_by(line):
    """The first cell as a Markdown reader shows it."""
    cell = re.match(r"\| ((?:\\.|[^\\|])*) \|", line)
    return re.sub(r"\\([^a-z0-9\s])", r"\1", cell[1]) if cell else None


def test_the_ledger_as_csv_and_json(strange):
    text, path = strange
    ledger = ledger_of(read_run(path))
    assert seen(text) in {row["client"] for row in csv.DictReader(io.StringIO(as_csv(ledger)))}
    assert all(c.isprintable() or c == "\n" for c in as_csv(ledger) + as_json(ledger))
    assert text in {a["client"] for a in json.loads(as_json(ledger))["clients"]}


@pytest.mark.parametrize("formula", ["=1+1", "+1", "-1", "@A1", " =1", "＝1", "=\x1b"])
def test_no_cell_is_a_formula(made, tmp_path, formula):
    path = shutil.copytree(made, tmp_path / made.name)
    for name in ("history.jsonl", "summary.json", "events.jsonl"):
        content = (path / name).read_text().replace('"partition-0"', json.dumps(formula))
        (path / name).write_text(content)
    (path / "state.safetensors").unlink()
    rows = list(csv.DictReader(io.StringIO(as_csv(ledger_of(read_run(path))))))
    assert f"'{seen(formula)}" in {row["client"] for row in rows}
    values = [row["sum"] for row in rows if row["sum"]]
    assert any(value.startswith("-") for value in values)  # numbers stay numbers
    assert all(float(value) is not None for value in values)


def test_the_page(strange):
    text, path = strange
    data = data_text([read_run(path)])
    assert "<" not in data
    told = json.loads(data)["runs"][0]
    assert told["id"] == seen(text)
    assert told["config"][seen(text)] == seen(text)
    assert seen(text) in {c["client"] for c in told["clients"]}
    assert seen(text) in {why for _, _, why in told["failures"]}
    assert told["refused"][-1][1:] == [seen(text)] * 2


@pytest.mark.parametrize("command", ["status", "ledger", "report", "watch"])
def test_errors_are_one_line_whatever_a_file_is_called(tmp_path, command):
    path = tmp_path / "[x]a\x1b[2Jb\u202e"
    path.mkdir()
    (path / "config.json").write_text('{"run-id": "\\u001b", "config": {"\\u202e": [], "seed": 0}}')
    line = [sys.executable, "-m", "experiments.cli", command, str(path)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    (told,) = done.stderr.splitlines()
    assert told.isprintable()
    assert seen(path.name) in told


@pytest.mark.parametrize("reason", STRANGE)
def test_a_reason_is_on_disk_as_it_is_shown(small, reason):
    def fail(content):
        raise RuntimeError(reason)

    path = run_with(small.with_values(clients_per_round=3, num_rounds=2), train=fail, node=1)
    whys = {why for r in history_of(path) for why in r["failures"].values()}
    assert whys == {f"RuntimeError: {seen(' '.join(reason.split()))} (error code 2)"}
