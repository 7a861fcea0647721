"""What a run directory holds, as tidy frames. Figures are those of history.jsonl and the ledger."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from math import nan
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.config import Scalar
from common.errors import GreedyfedError
from experiments.ledger import COLUMNS, answers, counted, ledger_of
from experiments.run_data import Record, RunData, read_run

if TYPE_CHECKING:
    from pandas import DataFrame

#: Columns that frames have in any case.
_ROUND = (
    *("round", "val_loss", "val_accuracy", "test_loss", "test_accuracy", "gain", "evaluations"),
    *("valuation_end", "asked", "counted", "failed", "seconds", "bytes_down", "bytes_up"),
)
_BY_CLASS = ["round", "client", "class", "shapley", "cumulative"]
_VALUE = ["round", "client", "shapley", "std_error", "cumulative", "leave_one_out"]


class FramesError(GreedyfedError):
    """Frames cannot be made."""


@dataclass(frozen=True, eq=False)
class Run:
    """A run. Losses, values and gains are in nats, accuracies in 0..1, clients by their id.

    Attributes:
        path: the run directory.
        run_id: the run's name.
        state: `complete`, `running` or `stopped`.
        config: every key of the configuration.
        rounds: a row a round (index `round`): the numbers of history.jsonl, `valuation_end`, how
            many clients were `asked`, `counted` and `failed`, `seconds_<phase>` and their sum
            `seconds`, `bytes_down` and `bytes_up`.
        clients: a row a client (index `client`), as in `greedyfed ledger`, whose columns
            `experiments.ledger.COLUMNS` explains; and `local_epochs` and `noise_sigma` where they
            are known, `delta` where the run reports an `epsilon`. `cumulative` is the value
            by which the run selects.
        labels: the clients' label histograms: client, label, examples. Simulated clients only, once
            the run is complete.
        values: a row for each valued client of a round: round, client, shapley, std_error,
            cumulative, leave_one_out.
        by_class: a row for each valued client of a round and each class, or group of
            `valuation-groups`: round, client, class, shapley, cumulative.
        selections: a row for each client asked in a round: round, client, status (`counted`,
            `failed` or `left out`), and `why` it failed.
    """

    path: Path
    run_id: str
    state: str
    config: dict[str, Scalar]
    rounds: "DataFrame"
    clients: "DataFrame"
    labels: "DataFrame"
    values: "DataFrame"
    by_class: "DataFrame"
    selections: "DataFrame"


def read(path: str | PathLike[str]) -> Run:
    """See `greedyfed.load_run`."""
    if find_spec("pandas") is None:
        raise FramesError("load_run: needs pandas; pip install 'greedyfed[frames]'")
    from pandas import DataFrame

    run = read_run(Path(path))
    told = list(zip(run.rounds, answers(run), strict=True))
    rows = [_round(record, counted(record, answered)) for record, answered in told]
    accounts = [asdict(account) | _about(run, account.client) for account in ledger_of(run).clients]
    clients = DataFrame(accounts, columns=_columns(COLUMNS, accounts)).set_index("client")
    return Run(
        path=run.path,
        run_id=run.run_id,
        state=run.state,
        config=run.config,
        rounds=DataFrame(rows, columns=_columns(_ROUND, rows)).set_index("round"),
        clients=clients.astype({c: float for c in clients if clients[c].dtype == object}),
        labels=DataFrame(_labels(run), columns=["client", "label", "examples"]),
        values=DataFrame(_values(run), columns=_VALUE),
        by_class=DataFrame(_by_class(run), columns=_BY_CLASS),
        selections=DataFrame(
            [s for record, answered in told for s in _selections(record, answered)],
            columns=["round", "client", "status", "why"],
        ),
    )


def _columns(first: Iterable[str], rows: list[dict[str, Any]]) -> list[str]:
    """The columns that a frame has in any case, and those that its rows have."""
    return list(dict.fromkeys([*first, *(key for row in rows for key in row)]))


def _round(record: Record, counted: set[str]) -> dict[str, Any]:
    row = {key: value for key, value in record.items() if isinstance(value, int | float | str)}
    row |= {"asked": len(record["cohort"]), "counted": len(counted)}
    row |= {"failed": len(record["failures"]), "seconds": sum(record["seconds"].values())}
    row |= {f"seconds_{phase}": seconds for phase, seconds in record["seconds"].items()}
    return row | {f"bytes_{way}": count for way, count in record["bytes"].items()}


def _about(run: RunData, client: str) -> dict[str, Any]:
    """What a client said of itself, and the δ of its ε."""
    about = run.clients[client]
    delta = {"delta": about["delta"]} if "delta" in about else {}
    return {key: about.get(key) for key in ("local_epochs", "noise_sigma")} | delta


def _labels(run: RunData) -> Iterator[tuple[str, int, int]]:
    for client, about in run.clients.items():
        for label, examples in enumerate(about.get("label_histogram") or []):
            yield client, label, examples


def _values(run: RunData) -> Iterator[tuple[Any, ...]]:
    for record in run.rounds:
        for client in record["shapley"]:
            figures = (record.get(key, {}).get(client, nan) for key in _VALUE[2:])
            yield record["round"], client, *figures


def _by_class(run: RunData) -> Iterator[tuple[Any, ...]]:
    for record in run.rounds:
        for client, values in record.get("class_shapley", {}).items():
            unknown = [nan] * len(values)
            cumulative = record.get("class_cumulative", {}).get(client, unknown)
            for group, figures in enumerate(zip(values, cumulative, strict=True)):
                yield record["round"], client, group, *figures


def _selections(record: Record, answered: set[str]) -> Iterator[tuple[int, str, str, str | None]]:
    for client in record["cohort"]:
        why = record["failures"].get(client)
        status = "counted" if client in counted(record, answered) else "left out"
        yield record["round"], client, "failed" if why else status, why
