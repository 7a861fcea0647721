"""The paper's cells as runs."""

import pytest

from common.errors import GreedyfedError
from experiments.cells import all_cells, key_of, select
from experiments.paper import Plan, paper

PLAN = Plan({"data-dir": "/data", "output-dir": "/runs"})
CELLS = all_cells()[:252]
#: Of each condition: the keys that tell it from the default setting.
CONDITIONS = {
    "alpha=1e-4": {},
    "alpha=0.1": {"partition": "dirichlet", "dirichlet-alpha": 0.1},
    "alpha=100": {"partition": "dirichlet", "dirichlet-alpha": 100.0},
    **{f"T={t}": {} for t in (100, 150, 200, 250, 350)},
    "x=0": {},
    "x=0.5": {"straggler-fraction": 0.5},
    "x=0.9": {"straggler-fraction": 0.9},
    "sigma=0": {},
    "sigma=0.05": {"noise-sigma": 0.05},
    "sigma=0.1": {"noise-sigma": 0.1},
}
DEFAULT = {
    "partition": "dirichlet-float32",
    "dirichlet-alpha": 1e-4,
    "straggler-fraction": 0.0,
    "noise-sigma": 0.0,
    "local-epochs": 5,
    "batches-per-epoch": 5,
    "learning-rate": 0.01,
    "momentum": 0.5,
    "valuation-stop": "released",
}
#: Runs of each algorithm among which its hyper-parameters are chosen.
CHOICES = {
    "greedyfed": 5,
    "ucb": 3,
    "sfedavg": 4,
    "fedavg": 1,
    "fedprox": 4,
    "power-of-choice": 1,
    "centralised": 1,
}
NOT_TOUCHED = ("straggler-fraction", "noise-sigma")


def test_the_252_cells():
    assert len(CELLS) == len(set(CELLS)) == 252
    assert all(c.mean is not None and c.std is not None for c in CELLS)
    assert {c.mean is None for c in all_cells()[252:]} == {True}
    for dataset in ("mnist", "fmnist", "cifar10"):
        assert sum(c.dataset == dataset for c in CELLS) == 84


@pytest.mark.parametrize(
    "cell", CELLS, ids=lambda c: f"{c.table} {c.dataset} {c.condition} {c.algorithm}"
)
def test_each_cell_has_its_runs(cell):
    runs = PLAN.candidates(cell, seed=3)
    choices = CHOICES[key_of(cell.algorithm)]
    assert len(runs) == choices
    assert len({r.run_id for r in runs}) == choices
    cifar = cell.dataset == "cifar10"
    n, m, t = (200, 20, 200) if cifar else (300, 3, 400)
    assert (cell.num_clients, cell.clients_per_round) == (n, m)
    expected = DEFAULT | CONDITIONS[cell.condition]
    if cell.algorithm == "Centralized":
        expected |= dict.fromkeys(NOT_TOUCHED, 0.0)
    expected |= {"dataset": cell.dataset, "num-clients": n, "clients-per-round": m, "seed": 3}
    for run in runs:
        flat = run.to_flat()
        assert {k: flat[k] for k in expected} == expected
        assert run.num_rounds == t
        assert run.selection.algorithm == key_of(cell.algorithm)
    assert cell.rounds == (int(cell.condition[2:]) if cell.table == "timing" else t)
    assert cell.rounds <= t


def test_the_default_setting_and_the_timing_table_are_of_one_run():
    runs = {
        PLAN.candidates(c, 0)[0].run_id
        for c in CELLS
        if (c.dataset, c.algorithm) == ("mnist", "FedAvg")
        and (c.table == "timing" or c.condition in ("alpha=1e-4", "x=0", "sigma=0"))
    }
    assert len(runs) == 1


def test_centralised_training_is_touched_by_neither_stragglers_nor_noise():
    cells = [c for c in CELLS if (c.dataset, c.algorithm) == ("mnist", "Centralized")]
    by_condition = {c.condition: PLAN.run(c, 0).run_id for c in cells}
    base = by_condition["alpha=1e-4"]
    same = [name for name, run_id in by_condition.items() if run_id == base]
    assert set(by_condition) - set(same) == {"alpha=0.1", "alpha=100"}


def test_the_one_class_split_is_a_column_beyond_the_papers():
    cells = [c for c in select("data", "mnist", ["greedyfed"]) if c.mean is None]
    assert [c.condition for c in cells] == ["alpha=1e-4, one class"]
    data = PLAN.candidates(cells[0], 0)[0].data
    assert (data.partition, data.dirichlet_alpha) == ("dirichlet", 1e-4)


def test_choices_are_the_same_for_all_cells_of_a_data_set_unless_asked():
    cells = select("systems", "mnist", ["ucb"])
    assert len({tuple(r.run_id for r in PLAN.tuning(c)) for c in cells}) == 1
    each = Plan(PLAN.changes, per_cell=True)
    assert len({tuple(r.run_id for r in each.tuning(c)) for c in cells}) == 3
    assert PLAN.tuning(select("data", "mnist", ["fedavg"])[0]) == []


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"table": "noise"}, "--table noise: unknown; use one of data, timing, systems, privacy"),
        ({"dataset": "digits"}, "--dataset digits: unknown; use one of mnist, fmnist, cifar10"),
        ({"algorithm": ["sfed"]}, "--algorithm sfed: unknown; use one of greedyfed, ucb"),
        ({"change": ["num-round=3"]}, "num-round = 3: unknown key; did you mean 'num-rounds'"),
        ({"seeds": 100}, "runs: more than 2,000; shorten the lists, or say --yes"),
        ({"data_dir": "/nowhere", "change": ["download=false"]}, "no such folder"),
    ],
)
def test_wrong_requests_are_one_line(keys, words, tmp_path):
    with pytest.raises(GreedyfedError, match=words) as error:
        paper(output_dir=str(tmp_path / "runs"), **keys)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)
    assert not (tmp_path / "runs").exists()


def test_a_dry_run_lists_the_runs(tmp_path, capsys):
    paper(table="data", dataset="mnist", seeds=1, output_dir=str(tmp_path / "runs"), dry_run=True)
    *runs, size = capsys.readouterr().out.splitlines()
    # 19 for the choices and the base column, 7 in each of the three others.
    assert size.startswith("28 cells, 1 seeds: 40 runs, of which 40 are left, about ")
    assert len(runs) == len(set(runs)) == 40
    assert not (tmp_path / "runs").exists()


def on_digits(folder, jobs=1, **keys):
    keys = {"table": "systems", "dataset": "mnist", "algorithm": ["ucb", "centralised"]} | keys
    small = ["dataset=digits", "num-clients=6", "dirichlet-alpha=0.5", "learning-rate=0.1"]
    paper(**keys, seeds=2, rounds=3, change=small, output_dir=str(folder), jobs=jobs)


def test_a_table_is_run_once_and_shown(tmp_path, capsys):
    on_digits(tmp_path)
    first = capsys.readouterr()
    # Three choices on seed 0, the chosen on seed 1, and on 2 more conditions; 2 of centralised.
    assert len(list(tmp_path.glob("*/summary.json"))) == 3 + 1 + 2 * 2 + 2
    assert "6 cells, 2 seeds: 10 runs, of which 10 are left" in first.err
    assert "Systems heterogeneity, mnist, N = 300, M = 3, T = 3 (the paper's: 400)" in first.out
    assert first.out.count("(2)") == 6
    assert "(2) ✓" not in first.out
    on_digits(tmp_path, resume=True)
    again = capsys.readouterr()
    assert "of which 0 are left" in again.err
    assert again.out == first.out


def test_failed_runs_are_reported_after_the_table(tmp_path, capsys, monkeypatch):
    import typer

    monkeypatch.setattr("experiments.parallel.run_one", lambda flat: "the disk is full")
    with pytest.raises(typer.Exit) as left:
        on_digits(tmp_path)
    assert left.value.exit_code == 1
    captured = capsys.readouterr()
    assert "–" in captured.out
    assert captured.err.count("the disk is full") >= 4
