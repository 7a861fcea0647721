"""The paper's tables from run directories alone: ours beside the published figures."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from experiments.paper import Cell, Plan
from experiments.parallel import directory, is_complete
from server_app.run_directory import read_history

TITLES = {
    "data": "Data heterogeneity",
    "timing": "Timing constraints",
    "systems": "Systems heterogeneity",
    "privacy": "Privacy heterogeneity",
}
RULE = (
    "Test accuracy in %, mean ± population std over seeds. ✓: |ours − paper| is at most the sum of "
    "the two stds plus 1 point; ✗: it is more."
)


@dataclass(frozen=True)
class Figure:
    """Our figure for a cell: accuracies in % of its seeds, and the run directories they are of."""

    accuracies: tuple[float, ...]
    runs: tuple[str, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.accuracies))

    @property
    def std(self) -> float:
        return float(np.std(self.accuracies))

    def agrees(self, cell: Cell) -> bool | None:
        """Whether it is near the paper's; None where there is nothing to compare."""
        if not self.accuracies or cell.mean is None or cell.std is None:
            return None
        return abs(self.mean - cell.mean) <= self.std + cell.std + 1


@dataclass(frozen=True)
class Results:
    """What the run directories of a plan say of its cells."""

    plan: Plan
    seeds: int

    def figure(self, cell: Cell) -> Figure:
        """Of the seeds whose run is complete and has reached the cell's T.

        A run of fewer rounds than the paper's is read at its end, but in the timing table.
        """
        found = dict[str, float]()
        for seed in range(self.seeds):
            run = self.plan.run(cell, seed)
            if run and is_complete(run):
                t = cell.rounds if cell.table == "timing" else min(cell.rounds, run.num_rounds)
                accuracies = _accuracies(directory(run))
                if t <= len(accuracies):
                    found[run.run_id] = accuracies[t - 1]
        return Figure(tuple(found.values()), tuple(found))


@cache
def _accuracies(path: Path) -> tuple[float, ...]:
    """Test accuracy in % by round."""
    return tuple(100 * record["test_accuracy"] for record in read_history(path))


def show(results: Results, cells: Iterable[Cell], output: Console) -> None:
    """Print the tables of some cells."""
    if not output.is_terminal:
        output.width = 120
    tables = dict[tuple[str, str], list[Cell]]()
    for cell in cells:
        tables.setdefault((cell.table, cell.dataset), []).append(cell)
    for (table, dataset), part in tables.items():
        output.print(_table(results, f"{TITLES[table]}, {dataset}", part))
    output.print(RULE, soft_wrap=True)


def _table(results: Results, title: str, cells: list[Cell]) -> Table:
    one = cells[0]
    title += f", N = {one.num_clients}, M = {one.clients_per_round}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    conditions = list(dict.fromkeys(c.condition for c in cells))
    at = {(c.algorithm, c.condition): c for c in cells}
    table.add_column("")
    for condition in conditions:
        table.add_column(f"{condition}\nours (seeds), paper", justify="right", no_wrap=True)
    for algorithm in dict.fromkeys(c.algorithm for c in cells):
        row = [at[algorithm, condition] for condition in conditions]
        table.add_row(algorithm, *(_text(results.figure(cell), cell) for cell in row))
    return table


def _text(ours: Figure, cell: Cell) -> str:
    text = f"{ours.mean:.2f} ± {ours.std:.2f} ({len(ours.runs)})" if ours.runs else "–"
    if cell.mean is not None:
        text += f"\n{cell.mean:.2f} ± {cell.std:.2f}    "
    mark = {None: "", True: " ✓", False: " ✗"}[ours.agrees(cell)]
    return text.replace("\n", mark + "\n", 1)
