"""The paper's tables from run directories alone: ours beside the published figures."""

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from common.config import RunConfig
from experiments.cells import Cell
from experiments.paper import Plan
from experiments.parallel import complete_history, is_complete

TITLES = {
    "data": "Data heterogeneity",
    "timing": "Timing constraints",
    "systems": "Systems heterogeneity",
    "privacy": "Privacy heterogeneity",
}
RULE = (
    "Test accuracy in %, mean ± population std (number of seeds), above the paper's. "
    "✓: |ours − paper| is at most the sum of the two stds plus 1 point; ✗: it is more."
)
MARKS = {None: "", True: " ✓", False: " ✗"}
_SETTING = ("table", "dataset", "N", "M", "T", "condition", "algorithm")  # as in paper.csv
_LATEX_MARKS = {None: "", True: r" $\checkmark$", False: r" $\times$"}


@dataclass(frozen=True)
class Figure:
    """What a cell's complete runs give: accuracies in % after `rounds`, of one run each."""

    cell: Cell
    accuracies: tuple[float, ...]
    runs: tuple[str, ...]
    rounds: int

    @property
    def mean(self) -> float:
        return float(np.mean(self.accuracies))

    @property
    def std(self) -> float:
        return float(np.std(self.accuracies))

    @property
    def agrees(self) -> bool | None:
        """Whether it is near the paper's; None where there is nothing to compare."""
        mean, std = self.cell.mean, self.cell.std
        if not self.runs or mean is None or std is None or self.rounds != self.cell.rounds:
            return None
        return abs(self.mean - mean) <= self.std + std + 1

    @property
    def ours(self) -> str:
        """`94.10 ± 0.33 (3)`, – without runs."""
        return f"{self.mean:.2f} ± {self.std:.2f} ({len(self.runs)})" if self.runs else "–"

    @property
    def paper(self) -> str:
        """`94.06 ± 0.19`, nothing where the paper has no such column."""
        return "" if self.cell.mean is None else f"{self.cell.mean:.2f} ± {self.cell.std:.2f}"


@dataclass(frozen=True)
class PaperTable:
    """A table of one data set: for each algorithm a figure under each condition."""

    title: str
    conditions: list[str]
    rows: dict[str, list[Figure]]


def tables_of(plan: Plan, cells: Iterable[Cell], seeds: int) -> list[PaperTable]:
    """The tables that some cells are of, filled with what is complete of their seeds."""
    parts = dict[tuple[str, str], list[Cell]]()
    for cell in cells:
        parts.setdefault((cell.table, cell.dataset), []).append(cell)
    return [_table(plan, part, seeds) for part in parts.values()]


def _table(plan: Plan, cells: list[Cell], seeds: int) -> PaperTable:
    one, at = cells[0], {(c.algorithm, c.condition): c for c in cells}
    conditions = list(dict.fromkeys(c.condition for c in cells))
    rows = {
        algorithm: [figure_of(plan, at[algorithm, condition], seeds) for condition in conditions]
        for algorithm in dict.fromkeys(c.algorithm for c in cells)
    }
    title = (
        f"{TITLES[one.table]}, {one.dataset}, N = {one.num_clients}, M = {one.clients_per_round}"
    )
    if one.table != "timing":
        read = {f.rounds for figures in rows.values() for f in figures if f.runs} or {one.rounds}
        title += f", T = {', '.join(map(str, sorted(read)))}"
        title += "" if read == {one.rounds} else f" (the paper's: {one.rounds})"
    return PaperTable(title, conditions, rows)


def figure_of(plan: Plan, cell: Cell, seeds: int) -> Figure:
    """A cell's figure, of the seeds whose run is complete.

    A run of fewer rounds than the paper's is read at its end, but in the timing table not at all.
    """
    found, read = dict[str, float](), cell.rounds
    for run in (plan.run(cell, seed) for seed in range(seeds)):
        if run and is_complete(run) and (cell.table != "timing" or cell.rounds <= run.num_rounds):
            read = min(cell.rounds, run.num_rounds)
            found[run.run_id] = accuracies(run)[read - 1]
    return Figure(cell, tuple(found.values()), tuple(found), read)


@cache
def accuracies(run: RunConfig) -> tuple[float, ...]:
    """Test accuracy in % of a complete run, by round."""
    return tuple(100 * record["test_accuracy"] for record in complete_history(run))


def show(tables: Iterable[PaperTable], output: Console) -> None:
    """Print tables."""
    if not output.is_terminal:
        output.width = 120
    for table in tables:
        shown = Table(title=table.title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
        shown.add_column("")
        for condition in table.conditions:
            shown.add_column(condition, justify="right", no_wrap=True)
        for algorithm, figures in table.rows.items():
            texts = (f"{f.ours}{MARKS[f.agrees]}\n{f.paper:<17}".rstrip() for f in figures)
            shown.add_row(algorithm, *texts)
        output.print(shown)
    output.print(RULE, soft_wrap=True)


def markdown(tables: Iterable[PaperTable]) -> str:
    """The tables for a page, with the rule that marks them."""
    return "\n\n".join([RULE, *(_markdown(table) for table in tables)]) + "\n"


def _markdown(table: PaperTable) -> str:
    lines = [f"**{table.title}**", "", f"| | {' | '.join(table.conditions)} |"]
    lines.append("|---" + "|---:" * len(table.conditions) + "|")
    for algorithm, figures in table.rows.items():
        texts = (f"{f.ours}{MARKS[f.agrees]}" + (f"<br>{f.paper}" * bool(f.paper)) for f in figures)
        lines.append(f"| {algorithm} | {' | '.join(texts)} |")
    return "\n".join(lines)


def latex(tables: Iterable[PaperTable]) -> str:
    r"""The tables for \input; they need booktabs and amssymb."""
    return f"% {RULE}\n" + "\n".join("\n".join(_latex(table)) for table in tables) + "\n"


def _latex(table: PaperTable) -> Iterator[str]:
    def number(text: str) -> str:
        mean, _, std = text.partition(" ± ")
        std, _, seeds = std.partition(" ")
        return rf"${mean} \pm {std}$ {seeds}".rstrip() if std else "--" * bool(text)

    yield f"% {table.title}"
    yield rf"\begin{{tabular}}{{l{'r' * len(table.conditions)}}}"
    yield r"\toprule"
    yield " & ".join(["", *(f"${_latex_condition(c)}$" for c in table.conditions)]) + r" \\"
    yield r"\midrule"
    for algorithm, figures in table.rows.items():
        ours = (number(f.ours) + _LATEX_MARKS[f.agrees] for f in figures)
        yield " & ".join([algorithm, *ours]) + r" \\"
        yield " & ".join([r"\quad paper", *(number(f.paper) for f in figures)]) + r" \\"
    yield r"\bottomrule"
    yield r"\end{tabular}"


def _latex_condition(text: str) -> str:
    """`alpha=1e-4, one class` as mathematics."""
    condition, comma, words = text.partition(", ")
    name, _, value = condition.partition("=")
    name = rf"\{name}" if name in ("alpha", "sigma") else name
    base, e, power = value.partition("e")
    value = f"10^{{{power}}}" if e and base == "1" else value
    return f"{name}={value}" + (rf"\text{{, {words}}}" if comma else "")


def comma_separated(tables: Iterable[PaperTable]) -> str:
    """A line for each cell, with the names of the run directories that it is of."""
    text = io.StringIO()
    write = csv.writer(text, lineterminator="\n").writerow
    write(
        [*_SETTING, "rounds", "mean", "std", "seeds", "paper_mean", "paper_std", "agrees", "runs"]
    )
    for f in (f for table in tables for figures in table.rows.values() for f in figures):
        c = f.cell
        where = c.table, c.dataset, c.num_clients, c.clients_per_round, c.rounds
        ours = (f.rounds, f"{f.mean:.4f}", f"{f.std:.4f}") if f.runs else ("", "", "")
        agrees = {None: "", True: "yes", False: "no"}[f.agrees]
        paper = c.mean, c.std, agrees
        write([*where, c.condition, c.algorithm, *ours, len(f.runs), *paper, " ".join(f.runs)])
    return text.getvalue()
