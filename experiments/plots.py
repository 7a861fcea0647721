"""Accuracy by round of several runs, as a picture and as a table: mean and spread over seeds.

python -m experiments.plots runs/mnist -o accuracy.png --at 150 --at 400
"""

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from common.config import Scalar
from common.errors import GreedyfedError, printable
from experiments.run_data import each_once, find_runs, read_run
from experiments.screen import plain

#: Algorithms in the order of their legend.
NAMES = {
    "greedyfed": "GreedyFed",
    "ucb": "UCB",
    "sfedavg": "S-FedAvg",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "power-of-choice": "Power-of-Choice",
    "centralised": "Centralised",
    "greedyfed-classes": "GreedyFed by class",
}
#: algorithm -> test accuracy in % (seeds, rounds)
Curves = dict[str, NDArray[np.float64]]
COLUMNS = 3


def name_of(algorithm: str) -> str:
    """As it is called in the field; one that this version does not know is called as it is."""
    return NAMES.get(algorithm, algorithm)


def _in_order(curves: Curves) -> list[str]:
    """Its algorithms in the order of `NAMES`, then others."""
    known = list(NAMES)
    return sorted(curves, key=lambda a: (known.index(a) if a in NAMES else len(known), a))


def accuracies(folder: Path) -> Curves:
    """Test accuracy in percent of the runs in a folder: algorithm -> (seeds, rounds).

    A run that lacks rounds, as it goes on or was stopped, and a copy of another one are left out,
    each with a line on stderr.

    Raises:
        GreedyfedError: no runs, one that cannot be read, or runs of one algorithm that differ in
            more than the seed.
    """
    rows: dict[str, list[list[float]]] = defaultdict(list)
    settings: dict[str, dict[str, Scalar]] = {}
    for run in each_once([read_run(path) for path in sorted(find_runs(folder))]):
        name = str(run.config["algorithm"])
        same = {k: v for k, v in run.config.items() if k not in ("seed", "output-dir", "resume")}
        if settings.setdefault(name, same) != same:
            raise GreedyfedError(
                f"{run.path}: differs from other {name} runs in {folder} in more than its seed; "
                "move it elsewhere"
            )
        if len(run.rounds) == run.num_rounds:
            rows[name].append([100 * record["test_accuracy"] for record in run.rounds])
        else:
            short = f"{run.path}: has {len(run.rounds)} of {run.num_rounds} rounds"
            print(f"left out: {printable(short)}", file=sys.stderr)
    if not rows:
        raise GreedyfedError(f"{folder}: holds no finished run; give an --output-dir of runs")
    return {name: np.array(values) for name, values in rows.items()}


@contextmanager
def pictures(output: Path, rows: int, columns: int, size: tuple[float, float]) -> Iterator[Any]:
    """The axes (rows, columns) of a picture, each of a size in inches; written at the end.

    Raises:
        GreedyfedError: matplotlib is not installed, or the picture cannot be written.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise GreedyfedError(
            f"{output}: pictures need the extra `plots`; pip install 'greedyfed[plots]'"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    if output.suffix not in (".png", ".svg"):
        raise GreedyfedError(f"{output}: of no known form; give a .png or .svg file")
    inches = size[0] * columns, size[1] * rows
    figure, axes = pyplot.subplots(
        rows, columns, figsize=inches, dpi=110 if rows * columns == 1 else 72, squeeze=False
    )
    try:
        yield axes
        figure.tight_layout()
        output.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(output)
    except OSError as error:
        raise GreedyfedError(
            f"{output}: cannot be written: {error}; give a file that can"
        ) from error
    finally:
        pyplot.close(figure)


def plot(panels: Mapping[str, Curves], output: Path) -> None:
    """Mean lines with ± std bands over seeds: a panel for each name.

    Raises:
        GreedyfedError: as `pictures`.
    """
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    size = (7.0, 4.0) if len(panels) == 1 else (4.5, 3.4)
    with pictures(output, rows, columns, size) as axes:
        for ax in axes.flat[len(panels) :]:
            ax.set_axis_off()
        for ax, (title, curves) in zip(axes.flat, panels.items(), strict=False):
            others = (a for a in _in_order(curves) if a not in NAMES)
            colors = {name: f"C{k}" for k, name in enumerate([*NAMES, *others])}
            for name in _in_order(curves):
                values, color = curves[name], colors[name]
                mean, std = values.mean(axis=0), values.std(axis=0)
                rounds = np.arange(1, len(mean) + 1)
                label = drawn(f"{name_of(name)} ({len(values)} seeds)")
                ax.plot(rounds, mean, label=label, color=color, linewidth=1)
                ax.fill_between(rounds, mean - std, mean + std, alpha=0.2, color=color)
            ax.set(xlabel="communication round", ylabel="test accuracy, %", title=title)
            ax.grid(alpha=0.3)
            ax.legend(loc="lower right", fontsize="small")


def table(curves: Curves, at: list[int]) -> Table:
    """Mean ± population std of the accuracy at some rounds."""
    result = Table(title="Test accuracy, %: mean ± std (seeds)")
    result.add_column("algorithm")
    for t in at:
        result.add_column(f"T = {t}", justify="right")
    for name in _in_order(curves):
        cells = [curves[name][:, t - 1] for t in at]
        figures = (f"{c.mean():.2f} ± {c.std():.2f} ({len(c)})" for c in cells)
        result.add_row(plain(name_of(name)), *figures)
    return result


def drawn(text: str) -> str:
    """A text that matplotlib draws as it is: a $ would begin a formula, a _ hide it in a legend."""
    return (" " * text.startswith("_") + printable(text)).replace("$", r"\$")


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def draw(
    folder: Annotated[Path, typer.Argument(help="Folder of run directories.", readable=False)],
    output: Annotated[
        Path, typer.Option("-o", readable=False, help="Picture to write (.png, .svg).")
    ],
    at: Annotated[list[int] | None, typer.Option(help="Rounds of the table.", min=1)] = None,
) -> None:
    """Draw the picture and print the table."""
    curves = accuracies(folder)
    shortest = min(values.shape[1] for values in curves.values())
    if late := [t for t in at or [] if t > shortest]:
        raise GreedyfedError(
            f"--at {late[0]}: the shortest of these runs ends after round {shortest}; give that or "
            "one before"
        )
    plot({"": curves}, output)
    Console().print(table(curves, at or [shortest]))
    print(output)


if __name__ == "__main__":
    from experiments.cli import main

    main(app)
