"""Accuracy by round of several runs, as a picture and as a table: mean and spread over seeds.

python -m experiments.plots runs/mnist -o accuracy.png --at 150 --at 400
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from common.errors import GreedyfedError, one_line
from experiments.cli import main
from server_app.run_directory import CONFIG, read_history

NAMES = {"greedyfed": "GreedyFed", "fedavg": "FedAvg"}


def accuracies(folder: Path) -> dict[str, NDArray[np.float64]]:
    """Test accuracy in percent of all runs in a folder: algorithm -> (seeds, rounds).

    Raises:
        GreedyfedError: no runs, or runs of one algorithm that differ in more than the seed.
    """
    rows: dict[str, list[list[float]]] = defaultdict(list)
    settings: dict[str, dict[str, object]] = {}
    for path in sorted(folder.glob(f"*/{CONFIG}")):
        try:
            config = json.loads(path.read_text())["config"]
            history = [100 * record["test_accuracy"] for record in read_history(path.parent)]
            name, num_rounds = config["algorithm"], config["num-rounds"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise GreedyfedError(
                f"{path.parent}: cannot be read: {one_line(error)}; move it elsewhere"
            ) from error
        same = {k: v for k, v in config.items() if k not in ("seed", "output-dir", "resume")}
        if settings.setdefault(name, same) != same:
            raise GreedyfedError(
                f"{path.parent}: differs from other {name} runs in {folder} in more than its seed; "
                "move it elsewhere"
            )
        if len(history) == num_rounds:
            rows[name].append(history)
    if not rows:
        raise GreedyfedError(f"{folder}: holds no finished run; give an --output-dir of runs")
    return {name: np.array(values) for name, values in rows.items()}


def plot(curves: dict[str, NDArray[np.float64]], output: Path) -> None:
    """Mean lines with ± std bands over seeds.

    Raises:
        GreedyfedError: matplotlib is not installed, or the picture cannot be written.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise GreedyfedError(
            f"-o {output}: pictures need the extra `plots`; pip install 'greedyfed[plots]'"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=120)
    for name, values in sorted(curves.items(), reverse=True):
        rounds = np.arange(1, values.shape[1] + 1)
        mean, std = values.mean(axis=0), values.std(axis=0)
        (line,) = axes.plot(rounds, mean, label=f"{NAMES.get(name, name)} ({len(values)} seeds)")
        axes.fill_between(rounds, mean - std, mean + std, alpha=0.2, color=line.get_color())
    axes.set(xlabel="communication round", ylabel="test accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.tight_layout()
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(output)
    except ValueError as error:
        raise GreedyfedError(f"-o {output}: of no known form; give a .png or .svg file") from error
    except OSError as error:
        raise GreedyfedError(
            f"-o {output}: cannot be written: {error}; give a file that can"
        ) from error
    finally:
        pyplot.close(figure)


def table(curves: dict[str, NDArray[np.float64]], at: list[int]) -> Table:
    """Mean ± population std of the accuracy at some rounds."""
    result = Table(title="Test accuracy, %: mean ± std (seeds)")
    result.add_column("algorithm")
    for t in at:
        result.add_column(f"T = {t}", justify="right")
    for name, values in sorted(curves.items(), reverse=True):
        cells = [values[:, t - 1] for t in at]
        figures = (f"{c.mean():.2f} ± {c.std():.2f} ({len(c)})" for c in cells)
        result.add_row(NAMES.get(name, name), *figures)
    return result


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
    plot(curves, output)
    Console().print(table(curves, [t for t in at or [shortest] if t <= shortest]))
    print(output)


if __name__ == "__main__":
    main(app)
