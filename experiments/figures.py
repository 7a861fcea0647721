"""Who was selected, and whether values tell good clients from bad ones; from run directories.

python -m experiments.figures selection RUN… -o heat.png    # clients by value × rounds
python -m experiments.figures values RUN… -o values.png     # value against noise, epochs, skew
python -m experiments.figures classes RUN…                  # what is selected and learned by class
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file

from common.config import RunConfig
from common.datasets import load_splits
from common.errors import GreedyfedError, one_line
from common.evaluation import evaluate
from common.models import build_model
from experiments.ledger_formats import cell
from experiments.plots import drawn, name_of, pictures
from experiments.run_data import RunData, read_run
from server_app.run_directory import MODEL

Floats = NDArray[np.float64]
#: In what simulated clients differ: its name in a picture, and the attribute of Run.
QUALITIES = {
    "noise level σ_k": "sigma",
    "local epochs E_k": "epochs",
    "share of the largest class": "skew",
}
BINS = 40


@dataclass(frozen=True, eq=False)
class Run:
    """A complete run's clients (N,), and in which rounds each was selected (T, N)."""

    path: Path

    @cached_property
    def _data(self) -> RunData:
        data = read_run(self.path)
        if data.state != "complete":
            raise GreedyfedError(f"{self.path}: is not complete, but {data.state}; finish the run")
        return data

    @property
    def name(self) -> str:
        config = self._data.config
        return f"{name_of(str(config['algorithm']))}, seed {config['seed']}"

    @cached_property
    def selected(self) -> NDArray[np.bool_]:
        rounds, index = self._data.rounds, {c: k for k, c in enumerate(self._data.clients)}
        selected = np.zeros((len(rounds), len(index)), dtype=bool)
        for t, record in enumerate(rounds):
            selected[t, [index[c] for c in record["cohort"]]] = True
        return selected

    @cached_property
    def labels(self) -> Floats:
        """Share of each class at each client (N, classes)."""
        counts = self._of("label_histogram")
        if counts.ndim != 2 or not counts.sum(axis=1).all():
            raise GreedyfedError(f"{self.path}: has clients without labels; give simulated runs")
        shares: Floats = counts / counts.sum(axis=1, keepdims=True)
        return shares

    @property
    def value(self) -> Floats:
        return self._of("value")

    @property
    def sigma(self) -> Floats:
        return self._of("noise_sigma")

    @property
    def epochs(self) -> Floats:
        return self._of("local_epochs")

    @property
    def skew(self) -> Floats:
        return np.asarray(self.labels.max(axis=1), dtype=np.float64)

    def _of(self, key: str) -> Floats:
        clients = self._data.clients.values()
        if any(c.get(key) is None for c in clients):
            raise GreedyfedError(f"{self.path}: knows no {key} of its clients; give simulated runs")
        if len({np.size(c[key]) for c in clients}) > 1:
            raise GreedyfedError(f"{self.path}: its clients' {key} differ in length; give others")
        return np.array([c[key] for c in clients], dtype=np.float64)

    @property
    def last_accuracy(self) -> float:
        return float(100 * self._data.rounds[-1]["test_accuracy"])

    def class_accuracy(self) -> list[float]:
        """Of the last model, in % of the test examples of each class."""
        config = RunConfig.from_flat(self._data.config)
        splits = load_splits(config.data, config.seed)
        classes = splits.num_classes
        model = build_model(config.training.model, splits.input_shape, classes, config.seed)
        try:
            model.load_state_dict(load_file(self.path / MODEL))
        except (OSError, SafetensorError, RuntimeError) as error:
            raise GreedyfedError(f"{self.path / MODEL}: {one_line(error)}; run it again") from error
        parts = (splits.test.take(np.flatnonzero(splits.test.y == c)) for c in range(classes))
        return [100 * evaluate(model, part).accuracy for part in parts]

    def picks(self) -> list[float]:
        """What `PICKS` names, of the selections in the second half of the rounds."""
        count = self.selected[len(self.selected) // 2 :].sum(axis=0)
        share = count / count.sum()
        return [
            float((count > 0).sum()),
            100 * float(np.sort(share)[-5:].sum()),
            100 * float(share @ (self.skew > 0.99)),
            100 * float((share @ self.labels).max()),
            float(share @ self.epochs),
            float(share @ self.sigma),
        ]


PICKS = {
    "clients": ".0f",
    "top 5, %": ".0f",
    "one class, %": ".0f",
    "commonest class, %": ".0f",
    "mean E_k": ".2f",
    "mean σ_k": ".3f",
}
PICKS_MEANING = (
    "Who was selected in the second half of the rounds, mean over seeds: how many different "
    "clients, the share of selections that the five most frequent had, the share of clients with a "
    "single class, the share of the commonest class among the data of the selected, their local "
    "epochs and their noise level."
)


def picks(rows: Iterable[tuple[str, str, list[Path]]]) -> str:
    """A Markdown table of `PICKS`: condition, algorithm and run directories of each row."""
    lines = [f"| | | {' | '.join(PICKS)} |", "|---|---" + "|---:" * len(PICKS) + "|"]
    for condition, algorithm, paths in rows:
        means = np.mean([Run(path).picks() for path in paths], axis=0)
        texts = (format(m, form) for m, form in zip(means, PICKS.values(), strict=True))
        lines.append(f"| {condition} | {algorithm} | {' | '.join(texts)} |")
    return "\n".join(lines)


def by_class(runs: Iterable[Run]) -> str:
    """A Markdown table: of each class its share of the data of the selected clients in the second
    half of the rounds, and the last model's test accuracy on it.

    Raises:
        GreedyfedError: a run without its model, or whose data set is not where it was.
    """
    lines = list[str]()
    for run in runs:
        count = run.selected[len(run.selected) // 2 :].sum(axis=0)
        shares, accuracies = 100 * count @ run.labels / count.sum(), run.class_accuracy()
        if not lines:
            lines += [f"| | | {' | '.join(map(str, range(len(shares))))} | all |"]
            lines += ["|---|---" + "|---:" * (len(shares) + 1) + "|"]
        for name, row in (("selected, %", shares), ("accuracy, %", accuracies)):
            total = "" if row is shares else f"{run.last_accuracy:.1f}"
            texts = *(f"{x:.0f}" for x in row), total
            lines.append(f"| {cell(run.name)} | {name} | {' | '.join(texts)} |")
    return "\n".join(lines)


def rank_correlation(x: Floats, y: Floats) -> float:
    """Spearman's, ties sharing the mean of their ranks."""

    def ranks(values: Floats) -> Floats:
        _, place, count = np.unique(values, return_inverse=True, return_counts=True)
        return np.asarray((np.cumsum(count) - (count - 1) / 2)[place])

    return float(np.corrcoef(ranks(x), ranks(y))[0, 1])


def draw_selection(runs: list[Run], output: Path) -> None:
    """A panel a run: how often each client trained, the most valuable on top."""
    with pictures(output, 1, len(runs), (4.6, 4.0)) as axes:
        for ax, run in zip(axes.flat, runs, strict=True):
            bins = min(BINS, len(run.selected))
            parts = np.array_split(run.selected[:, np.argsort(-run.value)], bins)
            counts = np.array([part.mean(axis=0) for part in parts]).T
            edges = (0, len(run.selected), counts.shape[0], 0)
            image = ax.imshow(
                counts, aspect="auto", extent=edges, cmap="magma_r", vmax=1, interpolation="nearest"
            )
            ax.set(
                xlabel="communication round", ylabel="client, by final value", title=drawn(run.name)
            )
            ax.figure.colorbar(image, label="share of rounds in which it trained")


def draw_values(runs: list[Run], output: Path) -> None:
    """A row a run: final value against each quality in which its clients differ."""
    told = {name: key for name, key in QUALITIES.items() if any(_varies(r, key) for r in runs)}
    if not told:
        raise GreedyfedError("the clients of these runs do not differ in noise, epochs or labels")
    with pictures(output, len(runs), len(told), (4.2, 3.2)) as axes:
        for row, run in zip(axes, runs, strict=True):
            for ax, (name, key) in zip(row, told.items(), strict=True):
                quality, jitter = getattr(run, key), np.random.default_rng(0)
                shown = quality + jitter.uniform(-0.15, 0.15, len(quality)) * (key == "epochs")
                ax.scatter(shown, run.value, s=6, alpha=0.6)
                title = drawn(run.name)
                if _varies(run, key) and _varies(run, "value"):  # else there is no ρ
                    title += f", ρ = {rank_correlation(quality, run.value):+.2f}"
                ax.set(xlabel=name, ylabel="cumulative value", title=title)
                ax.grid(alpha=0.3)


def _varies(run: Run, key: str) -> bool:
    return bool(np.ptp(getattr(run, key)) > 0)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
Paths = Annotated[list[Path], typer.Argument(help="Run directories.", readable=False)]
Output = Annotated[Path, typer.Option("-o", readable=False, help="Picture (.png, .svg).")]


@app.command()
def selection(runs: Paths, output: Output) -> None:
    """Heat map: clients sorted by value × rounds."""
    draw_selection([Run(path) for path in runs], output)
    print(output)


@app.command()
def values(runs: Paths, output: Output) -> None:
    """Cumulative value against true quality, with Spearman's rank correlation."""
    draw_values([Run(path) for path in runs], output)
    print(output)


@app.command()
def classes(runs: Paths) -> None:
    """Share of each class in what was selected, and the last model's test accuracy on it."""
    print(by_class(Run(path) for path in runs))


if __name__ == "__main__":
    from experiments.cli import main

    main(app)
