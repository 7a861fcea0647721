"""`greedyfed paper`: the runs that give the cells of the paper's four tables."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from common.config import ConfigError, RunConfig, Scalar
from common.errors import GreedyfedError
from experiments.cells import Cell, all_cells, presets, select
from experiments.parallel import Workers, complete_history, directory, is_complete, run_all
from experiments.sweep import (
    DryRun,
    Jobs,
    RayAddress,
    Yes,
    changes_of,
    check_count,
    check_datasets,
    expand,
    lines,
    report,
)

#: Rounds whose mean validation accuracy compares hyper-parameters: one round's is noisy.
TUNING_ROUNDS = 10


@dataclass(frozen=True)
class Plan:
    """Which runs give a cell.

    Attributes:
        changes: keys that win over the presets', such as num-rounds, data-dir and output-dir.
        per_cell: choose hyper-parameters for each cell, as the paper did, not once per data set.
    """

    changes: dict[str, Scalar]
    per_cell: bool = False

    def candidates(self, cell: Cell, seed: int) -> list[RunConfig]:
        """The runs of a cell, one for each choice of hyper-parameters."""
        known = presets()
        extra = known["extra"].get(cell.table, {})
        condition = known["conditions"].get(cell.condition, extra.get(cell.condition))
        keys = {
            "dataset": cell.dataset,
            "num-clients": cell.num_clients,
            "clients-per-round": cell.clients_per_round,
            "num-rounds": {"cifar10": 200}.get(cell.dataset, 400),
            "seed": seed,
        }
        common = known["base"] | keys | condition
        groups = known["algorithms"][cell.algorithm]
        return expand({**common, **group, **self.changes} for group in groups)

    def tuning(self, cell: Cell) -> list[RunConfig]:
        """The runs among which the cell's hyper-parameters are chosen; none if it has none."""
        runs = self.candidates(cell if self.per_cell else _default(cell), seed=0)
        return runs if len(runs) > 1 else []

    def scores(self, cell: Cell) -> list[float]:
        """Of each run of `tuning`: its mean validation accuracy; none as long as one is missing.

        The mean is of the last 10 rounds, up to the cell's T where each cell has its own choice.
        """
        tuning = self.tuning(cell)
        if not all(map(is_complete, tuning)):
            return []
        rounds = cell.rounds if self.per_cell else None
        return [_late_accuracy(run, rounds) for run in tuning]

    def run(self, cell: Cell, seed: int) -> RunConfig | None:
        """The run of a cell; None as long as a run that chooses its hyper-parameters is missing.

        The best has the largest mean validation accuracy; of equals, the first.
        """
        runs = self.candidates(cell, seed)
        if len(runs) == 1:
            return runs[0]
        scores = self.scores(cell)
        return runs[scores.index(max(scores))] if scores else None

    def runs(self, cells: Iterable[Cell], seeds: int) -> list[RunConfig]:
        """All runs of some cells: first those that choose hyper-parameters, then what is known."""
        cells = list(cells)
        tuning = (run for cell in cells for run in self.tuning(cell))
        pairs = product(range(seeds), cells)
        return unique([*tuning, *filter(None, (self.run(cell, seed) for seed, cell in pairs))])


def _default(cell: Cell) -> Cell:
    """The cell of the same data set and algorithm in the paper's default setting."""
    return next(
        c for c in all_cells() if (c.dataset, c.algorithm) == (cell.dataset, cell.algorithm)
    )


@cache
def _late_accuracy(run: RunConfig, rounds: int | None) -> float:
    """Mean validation accuracy in % of a complete run's last rounds; up to `rounds` if given.

    Raises:
        GreedyfedError: a run of a version that did not record it.
    """
    last = complete_history(run)[:rounds][-TUNING_ROUNDS:]
    if any("val_accuracy" not in record for record in last):
        raise GreedyfedError(
            f"{directory(run)}: has no validation accuracy, which chooses hyper-parameters: it was "
            "made by an older version; delete the folder to run it again"
        )
    return 100 * float(np.mean([record["val_accuracy"] for record in last]))


def unique(runs: Iterable[RunConfig]) -> list[RunConfig]:
    """Each run once: the same one serves several cells."""
    return list({run.run_id: run for run in runs}.values())


def core_hours(runs: Iterable[RunConfig]) -> float:
    """How long the runs take on one core, about (paper.toml, seconds-per-round)."""
    seconds = 0.0
    for run in runs:
        dataset = "cifar10" if run.data.dataset == "cifar10" else "mnist"
        table = presets()["seconds-per-round"][dataset]
        seconds += run.num_rounds * table.get(run.selection.algorithm, table["fedavg"])
    return seconds / 3600


def paper(
    table: Annotated[
        str | None, typer.Option(help="`data`, `timing`, `systems` or `privacy`; all if not given.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="`mnist`, `fmnist` or `cifar10`; all if not given.")
    ] = None,
    algorithm: Annotated[
        list[str] | None, typer.Option(help="Only this algorithm; repeatable.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0, 1, …")] = 5,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Rounds of each run, in place of the paper's T.")
    ] = None,
    data_dir: Annotated[
        str, typer.Option(envvar="GREEDYFED_DATA", help="Data sets; missing ones are fetched.")
    ] = "data",
    output_dir: Annotated[str, typer.Option(help="Run directories are made in here.")] = (
        "runs/paper"
    ),
    change: Annotated[
        list[str] | None, typer.Option("-c", metavar="KEY=VALUE", help="Set a key; repeatable.")
    ] = None,
    jobs: Jobs = 1,
    ray: RayAddress = None,
    tune_per_cell: Annotated[
        bool, typer.Option("--tune-per-cell", help="Choose hyper-parameters for each cell.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Nothing to ask for: every run goes on.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            readable=False,
            help="Run nothing, write what there is: tables (.md, .csv, .tex) or curves (.png, "
            ".svg).",
        ),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """The paper's tables: run what is missing, then show them beside the published figures.

    Hyper-parameters are chosen first, on seed 0 of the paper's default setting. Finished runs are
    skipped, interrupted ones go on.
    """
    given = {"data-dir": data_dir, "output-dir": output_dir, "num-rounds": rounds}
    plan = Plan({"download": True} | changes_of(change, given), tune_per_cell)
    cells = select(table, dataset, algorithm or [])
    if out and dry_run:
        raise ConfigError("--out with --dry-run: the one writes, the other must not; give one")
    if out:
        from experiments.paper_page import write

        write(plan, cells, seeds, out)
        missing = [
            r for r in unique(r for c in cells for r in plan.tuning(c)) if not is_complete(r)
        ]
        if missing:
            Console(stderr=True).print(
                f"{len(missing)} runs that choose hyper-parameters are not complete, so that the "
                "cells of their algorithms are empty; the same command without --out runs them",
                soft_wrap=True,
            )
        print(out)
        return
    pairs = list(product(range(seeds), cells))
    first = unique(run for cell in cells for run in plan.tuning(cell) or plan.candidates(cell, 0))
    # Without the choice, count with the first of each: there are as many.
    rest = [plan.run(cell, seed) or plan.candidates(cell, seed)[0] for seed, cell in pairs]
    runs = unique([*first, *rest])
    check_count(len(runs), yes)
    left = [run for run in runs if not is_complete(run)]
    size = (
        f"{len(cells)} cells, {seeds} seeds: {len(runs)} runs, of which {len(left)} are left, "
        f"about {core_hours(left):.1f} core-hours"
    )
    if dry_run:
        print(*lines(runs), size, sep="\n")
        return
    console = Console(stderr=True)
    console.print(size, soft_wrap=True)
    check_datasets(left)
    workers = Workers(jobs, ray)
    outcome = run_all(first, workers, console)
    chosen = [plan.run(cell, seed) for seed, cell in pairs]
    rest = [run for run in unique(filter(None, chosen)) if run not in first]
    later = run_all(rest, workers, console) if rest else None
    from experiments.tables import show, tables_of

    show(tables_of(plan, cells, seeds), Console())
    report(outcome, console)
    if later:
        report(later, console)
