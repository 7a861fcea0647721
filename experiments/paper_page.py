"""What `greedyfed paper --out FILE` writes, from run directories alone; the suffix says what."""

from collections.abc import Callable, Iterable, Iterator
from math import fsum
from pathlib import Path

import numpy as np

from common.errors import GreedyfedError
from experiments.cells import Cell, key_of
from experiments.figures import PICKS_MEANING, picks
from experiments.paper import TUNING_ROUNDS, Plan
from experiments.parallel import complete_history, directory, is_complete
from experiments.plots import Curves, plot
from experiments.run_data import read_run
from experiments.tables import (
    PaperTable,
    accuracies,
    comma_separated,
    latex,
    markdown,
    tables_of,
)

_TEXTS: dict[str, Callable[[list[PaperTable]], str]] = {".csv": comma_separated, ".tex": latex}
_PICTURES = (".png", ".svg")


def write(plan: Plan, cells: list[Cell], seeds: int, out: Path) -> None:
    """Write tables or curves of what is complete.

    In a Markdown file that has them, the lines between `<!-- paper: mnist -->` and `<!-- end -->`
    are replaced, for each data set; the rest of the file stays.

    Raises:
        GreedyfedError: nothing is complete, a suffix of no known kind, a file that cannot be
            written.
    """
    suffix = out.suffix
    if suffix not in (".md", *_TEXTS, *_PICTURES):
        raise GreedyfedError(f"--out {out}: of no known kind; give a .md, .csv, .tex, .png or .svg")
    if not any(is_complete(run) for run in plan.runs(cells, seeds)):
        folder = directory(plan.candidates(cells[0], 0)[0]).parent
        raise GreedyfedError(
            f"--output-dir {folder}: holds no complete run of these cells; run them first, by the "
            "same command without --out"
        )
    if suffix in _PICTURES:
        plot(_panels(plan, cells, seeds), out)
        return
    try:
        if suffix == ".md":
            text = _page(
                plan, cells, seeds, out.read_text(encoding="utf-8") if out.exists() else ""
            )
        else:
            text = _TEXTS[suffix](tables_of(plan, cells, seeds))
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise GreedyfedError(
            f"--out {out}: cannot be written: {error}; give a file that can"
        ) from error


def _page(plan: Plan, cells: list[Cell], seeds: int, before: str) -> str:
    sections = []
    for dataset in dict.fromkeys(c.dataset for c in cells):
        part = [c for c in cells if c.dataset == dataset]
        begin, end = f"<!-- paper: {dataset} -->\n", "<!-- end -->"
        section = f"{begin}{_section(plan, part, seeds)}{end}"
        head, marker, rest = before.partition(begin)
        if marker and end in rest:
            before = head + section + rest.partition(end)[2]
        else:
            sections.append(section + "\n")
    return before + "\n".join(sections) if before.strip() else "\n".join(sections)


def _section(plan: Plan, cells: list[Cell], seeds: int) -> str:
    """Tables, chosen hyper-parameters and cost of a data set."""
    runs = plan.runs(cells, seeds)
    done = [run for run in runs if is_complete(run)]
    seconds = (fsum(r["seconds"].values()) for run in done for r in complete_history(run))
    hours = fsum(seconds) / 3600
    versions = dict[str, int]()
    for run in done:
        about = read_run(directory(run)).versions
        text = ", ".join(f"{k} {about.get(k, '?')}" for k in ("flwr", "torch", "numpy"))
        versions[text] = versions.get(text, 0) + 1
    cost = f"{len(done)} runs, {hours:.2f} hours of one core in all. Computed with " + "; ".join(
        f"{text} ({count} runs)" for text, count in versions.items()
    )
    parts = [markdown(tables_of(plan, cells, seeds)), *_choices(plan, cells)]
    parts += [PICKS_MEANING, "", picks(_picked(plan, cells, seeds)), "", cost + "."]
    return "\n".join(parts) + "\n"


def _picked(plan: Plan, cells: list[Cell], seeds: int) -> Iterator[tuple[str, str, list[Path]]]:
    """Condition, algorithm and complete runs, each run once; by condition."""
    seen, conditions = set[str](), list(dict.fromkeys(c.condition for c in cells))
    for cell in sorted(cells, key=lambda c: conditions.index(c.condition)):
        runs = [run for seed in range(seeds) if (run := plan.run(cell, seed)) and is_complete(run)]
        new = [run for run in runs if run.run_id not in seen]
        seen |= {run.run_id for run in new}
        if new and cell.algorithm != "Centralized":
            yield cell.condition, cell.algorithm, [directory(run) for run in new]


def _choices(plan: Plan, cells: list[Cell]) -> Iterable[str]:
    """Of which runs the hyper-parameters were chosen."""
    chosen = list[str]()
    seen = set[tuple[str, ...]]()
    for cell in cells:
        tuning, scores = plan.tuning(cell), plan.scores(cell)
        names = tuple(run.run_id for run in tuning)
        if not scores or names in seen:
            continue
        seen.add(names)
        values = [run.to_flat() for run in tuning]
        keys = [k for k in values[0] if len({str(v[k]) for v in values}) > 1]
        best = int(np.argmax(scores))
        name = cell.algorithm + (f", {cell.table}, {cell.condition}" if plan.per_cell else "")
        for i, (value, score) in enumerate(zip(values, scores, strict=True)):
            setting = ", ".join(f"{k} = {value[k]}" for k in keys if _matters(k, value))
            mark = "**chosen**" if i == best else ""
            chosen.append(f"| {name} | {setting} | {score:.2f} | {mark} |")
    if chosen:
        yield (
            f"Hyper-parameters, by the mean validation accuracy (%) of the last {TUNING_ROUNDS} "
            "rounds on seed 0" + (":\n" if plan.per_cell else " of the default setting:\n")
        )
        yield "\n".join(["| | setting | accuracy | |", "|---|---|---:|---|", *chosen, ""])


def _matters(key: str, keys: dict[str, bool | int | float | str]) -> bool:
    return key != "cumulative-alpha" or keys["cumulative"] != "mean"


def _panels(plan: Plan, cells: list[Cell], seeds: int) -> dict[str, Curves]:
    """A panel for each condition, but for those that are of the same runs."""
    panels, seen = dict[str, Curves](), set[tuple[str, ...]]()
    for table, dataset, condition in dict.fromkeys(
        (c.table, c.dataset, c.condition) for c in cells
    ):
        curves: Curves = {}
        names = list[str]()
        for cell in cells:
            if (cell.table, cell.dataset, cell.condition) == (table, dataset, condition):
                runs = [plan.run(cell, seed) for seed in range(seeds)]
                done = [run for run in runs if run and is_complete(run)]
                names += [run.run_id for run in done]
                if done:
                    curves[key_of(cell.algorithm)] = np.array([accuracies(run) for run in done])
        if curves and tuple(names) not in seen:
            seen.add(tuple(names))
            panels[f"{dataset}, {'default' if table == 'timing' else condition}"] = curves
    return panels
