"""`greedyfed report`: the data of its page, and what it says of bad input."""

import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import fmean, pstdev

import pytest

from experiments.page_data import page_data
from experiments.report import MANY_RUNS, ReportError, data_text, page, read_runs, write_report
from experiments.run_data import RunDataError, read_run
from tests.federation import history_of, run


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    from common.config import RunConfig

    keys = {"num-clients": 6, "clients-per-round": 2, "num-rounds": 4, "learning-rate": 0.1}
    config = RunConfig.from_flat(keys | {"output-dir": str(tmp_path_factory.mktemp("runs"))})
    return [
        run(config),
        run(config.with_values(seed=1)),
        run(config.with_values(num_rounds=3, noise_sigma=0.5)),
    ]


def test_runs_that_differ_in_their_seed_only_are_a_group(made):
    data = page_data([read_run(path) for path in made])
    assert [group["runs"] for group in data["groups"]] == [[0, 1], [2]]
    assert data["groups"][1]["label"] == "num-rounds = 3, noise-sigma = 0.5"
    assert data["runs"][1]["label"].endswith("seed 1")
    first, second = (history_of(path) for path in made[:2])
    for key in ("test_accuracy", "val_loss"):
        band = data["groups"][0][key]
        pairs = [[a[key], b[key]] for a, b in zip(first, second, strict=True)]
        assert band["mean"] == [fmean(pair) for pair in pairs]
        assert band["std"] == [pstdev(pair) for pair in pairs]


def test_an_algorithm_is_named_as_in_the_field(made, tmp_path, small):
    other = run(small.with_values(num_rounds=4, algorithm="fedavg"))
    data = page_data([read_run(made[0]), read_run(other)])
    assert [group["label"] for group in data["groups"]] == ["GreedyFed", "FedAvg"]
    one = page_data([read_run(made[0])])
    assert one["runs"][0]["label"] == "GreedyFed, seed 0"


@pytest.mark.parametrize("cumulative", ["mean", "exponential", "exponential-from-zero"])
def test_errors_of_cumulative_values_are_those_of_their_formula(small, cumulative):
    """The formula is linear: applied to errors of one sign it bounds, squared it gives, theirs."""
    config = small.with_values(cumulative=cumulative, cumulative_alpha=0.3, valuation="gtg")
    path = run(config.with_values(num_rounds=12))
    data, history = page_data([read_run(path)])["runs"][0], history_of(path)
    names = [client["client"] for client in data["clients"]]
    weights = {name: [] for name in names}  # of each of its values in its cumulative one
    for record, row in zip(history, data["values"], strict=True):
        for k, value, error, average, spread, total, of_sum in row:
            mine = weights[names[k]]
            if cumulative == "mean":
                mine[:] = [(w[0], w[1], 1 / (len(mine) + 1)) for w in mine]
                mine.append((value, error, 1 / (len(mine) + 1)))
            else:
                start = 1.0 if cumulative == "exponential" and not mine else 0.7
                mine[:] = [(w[0], w[1], 0.3 * w[2]) for w in mine]
                mine.append((value, error, start))
            assert average == pytest.approx(sum(v * w for v, _, w in mine))
            assert spread == pytest.approx(sum((e * w) ** 2 for _, e, w in mine) ** 0.5)
            assert total == pytest.approx(sum(v for v, _, _ in mine))
            assert of_sum == pytest.approx(sum(e**2 for _, e, _ in mine) ** 0.5)
            assert record["cumulative"][names[k]] == average


def test_an_infinite_loss_is_no_number_of_json(made, tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    for name in ("config.json", "history.jsonl"):
        text = re.sub(
            r'"test_loss": [0-9.]+', '"test_loss": Infinity', (made[0] / name).read_text()
        )
        (path / name).write_text(text)
    data = json.loads(data_text([read_run(path)]))
    assert data["runs"][0]["rounds"]["test_loss"] == [None] * 4


def test_a_run_without_rounds_has_a_page(made, tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.json").write_text((made[0] / "config.json").read_text())
    data = json.loads(data_text([read_run(path)]))
    assert data["runs"][0]["answers"]["helped"] == ["No round has ended yet."]


def test_a_round_that_broke_off_is_told(made, tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.json").write_text((made[0] / "config.json").read_text())
    events = [
        {"time": 1.0, "round": 1, "event": "asked", "clients": ["a", "b"]},
        {"time": 2.0, "round": 1, "event": "failed", "client": "a", "why": "it is full"},
    ]
    (path / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))
    data = page_data([read_run(path)])["runs"][0]
    assert data["failures"] == [[1, "a", "it is full"]]
    assert data["answers"]["helped"] == [
        "Round 1 broke off: 2 clients asked, 1 failed. Asked: a, b.",
        "Why: a: it is full.",
        "No round has ended yet.",
    ]


def test_a_centralised_run_asks_nobody_by_turns(small):
    path = run(small.with_values(algorithm="centralised", valuation="none", num_rounds=1))
    data = page_data([read_run(path)])["runs"][0]
    told = {f["label"]: f["note"] for f in data["figures"]}
    assert told["Clients"] == "their examples trained on as one"
    assert "valuing" not in " ".join(data["answers"]["cost"])
    assert "None of 1 request to clients failed." in data["answers"]["cost"]


def test_the_page_needs_nothing_else(made):
    text = page(data_text([read_run(made[0])]))
    assert len(text) < 12e6
    assert text.count("<script") == 6
    assert "connect-src &#x27;none&#x27;" in text
    ours = text.replace(re.search(r"<script>/\*\*.*?</script>", text, re.DOTALL)[0], "")
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", ours)


def test_the_command_writes_one_file(made, tmp_path):
    command = [sys.executable, "-m", "experiments.cli", "report", *map(str, made)]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "new" / "r.html")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{tmp_path / 'new' / 'r.html'}\n"
    assert (tmp_path / "new" / "r.html").read_text().startswith("<!doctype html>")


def test_a_page_cut_short_leaves_the_one_before(made, tmp_path):
    out = tmp_path / "r.html"
    out.write_text("the page before")
    small = "import resource as r; r.setrlimit(r.RLIMIT_FSIZE, (100_000, 100_000))"
    script = f"{small}; from experiments.cli import main; main()"
    command = [sys.executable, "-c", script, "report", str(made[0]), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        f"greedyfed: {out}: cannot be written: File too large; free space or name another file\n"
    )
    assert out.read_text() == "the page before"
    assert list(tmp_path.iterdir()) == [out]


def test_a_page_goes_where_a_link_leads_and_into_a_pipe(made, tmp_path):
    (tmp_path / "there.html").write_text("the page before")
    (tmp_path / "link.html").symlink_to("there.html")
    write_report([read_run(made[0])], tmp_path / "link.html")
    assert (tmp_path / "link.html").is_symlink()
    assert (tmp_path / "there.html").read_text().startswith("<!doctype html>")
    command = [sys.executable, "-m", "experiments.cli", "report", str(made[0])]
    done = subprocess.run([*command, "-o", "/dev/stdout"], capture_output=True, text=True)
    assert done.stdout.startswith("<!doctype html>")
    with pytest.raises(ReportError, match="No space left on device; free space or name another"):
        write_report([read_run(made[0])], Path("/dev/full"))


def test_a_folder_of_runs_is_all_of_them(made, tmp_path):
    assert len(read_runs([made[0].parent])) == 3
    assert len(read_runs([made[0].parent, made[1]])) == 3
    with pytest.raises(RunDataError, match="no run here"):
        read_runs([tmp_path])
    for number in range(MANY_RUNS + 1):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "config.json").write_text("{}")
    with pytest.raises(ReportError, match=f"{MANY_RUNS + 1} runs: more than {MANY_RUNS}"):
        read_runs([tmp_path])
