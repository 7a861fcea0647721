"""What the report's page shows, as one JSON object: every figure of it is computed here."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from math import fsum, isfinite, nan, sqrt
from statistics import fmean, pstdev
from typing import Any

from common.config import RunConfig
from experiments.answers import answers_of, figures_of
from experiments.ledger import COLUMNS, Ledger, answers, counted, ledger_of
from experiments.plots import name_of
from experiments.run_data import Record, RunData
from experiments.summary import epsilon_text

Page = dict[str, Any]
#: What is shown by round, with a band over the seeds of a group.
CURVES = ("test_accuracy", "val_accuracy", "test_loss", "val_loss")
#: Keys in which runs of one group may differ.
_SAME = {"seed", "output-dir", "resume", "device", "data-dir", "download", "round-deadline"}
#: What became of a request to train, as numbers in the page.
COUNTED, FAILED, LEFT_OUT = 1, 2, 3


def page_data(runs: Sequence[RunData]) -> Page:
    """The object that `page/page.js` shows: all runs, and their groups of equal configuration."""
    labels, groups = _groups(runs)
    return {
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "columns": COLUMNS,
        "groups": groups,
        "runs": [_run(run, label) for run, label in zip(runs, labels, strict=True)],
    }


def _groups(runs: Sequence[RunData]) -> tuple[list[str], list[Page]]:
    """A label for each run, and the groups of runs that differ in their seed only."""
    default = RunConfig().to_flat()
    settings = [{k: v for k, v in (default | run.config).items() if k not in _SAME} for run in runs]
    varying = [k for k in settings[0] if len({repr(s.get(k)) for s in settings}) > 1]
    members: dict[str, list[int]] = {}
    for index, keys in enumerate(settings):
        differing = {k: keys.get(k) for k in varying}
        name = differing.pop("algorithm", None) or (not differing and keys["algorithm"])
        parts = [name_of(str(name))] if name else []
        parts += [f"{key} = {value}" for key, value in differing.items()]
        members.setdefault(", ".join(parts), []).append(index)
    labels = [""] * len(runs)
    for label, indices in members.items():
        for index in indices:
            labels[index] = f"{label}, seed {runs[index].config['seed']}"
    return labels, [
        {"label": label, "runs": indices} | _bands([runs[i].rounds for i in indices])
        for label, indices in members.items()
    ]


def _bands(histories: list[Sequence[Record]]) -> Page:
    """Mean and standard deviation by round, of the runs that came so far with a finite figure."""
    bands: Page = {}
    longest = max(len(history) for history in histories)
    for key in CURVES:
        columns = [
            [h[t][key] for h in histories if t < len(h) and isfinite(h[t].get(key, nan))]
            for t in range(longest)
        ]
        bands[key] = {
            "mean": [fmean(c) if c else None for c in columns],
            "std": [pstdev(c) if c else None for c in columns],
        }
    return bands


def _run(run: RunData, label: str) -> Page:
    ledger = ledger_of(run)
    clients = [_client(run, asdict(account)) for account in ledger.clients]
    index = {client["client"]: k for k, client in enumerate(clients)}
    keys = ("round", *CURVES, "evaluations", "valuation_end")
    return {
        "id": run.run_id,
        "label": label,
        "state": run.state,
        "num_rounds": run.num_rounds,
        "config": run.config,
        "versions": run.versions,
        "answers": answers_of(run, ledger),
        "figures": figures_of(run, ledger),
        "rounds": {key: [record.get(key) for record in run.rounds] for key in keys},
        "gains": [[g.gain, g.shared, g.residual] for g in ledger.rounds],
        "seconds": _by_phase(run.rounds, "seconds"),
        "bytes": _by_phase(run.rounds, "bytes"),
        "asked": _asked(run, index),
        "values": _values(run, index),
        "clients": clients,
        "class_sums": _class_sums(ledger),
        "failures": [
            [r["round"], c, why]
            for r in [*run.rounds, *([run.unfinished] if run.unfinished else [])]
            for c, why in r["failures"].items()
        ],
        "refused": [
            [e["round"], e["node"], e["why"]] for e in run.events if e["event"] == "refused"
        ],
    }


def _client(run: RunData, account: Page) -> Page:
    """A client's account, with what is known of its data and its machine."""
    about = run.clients[account["client"]]
    labels = about.get("label_histogram")
    return account | {
        "epochs": about.get("local_epochs"),
        "noise": about.get("noise_sigma"),
        "epsilon": epsilon_text(about) if "epsilon" in about else None,
        "labels": labels,
        "largest_class": max(labels) / sum(labels) if labels and sum(labels) else None,
    }


def _by_phase(records: Sequence[Record], key: str) -> dict[str, list[float]]:
    phases = dict.fromkeys(phase for record in records for phase in record[key])
    return {phase: [record[key].get(phase, 0) for record in records] for phase in phases}


def _asked(run: RunData, index: dict[str, int]) -> list[list[list[int]]]:
    """Of each round [client, what became of the request] of everyone asked."""
    rounds = []
    for record, answered in zip(run.rounds, answers(run), strict=True):
        average = counted(record, answered)
        rounds.append(
            [
                [
                    index[c],
                    COUNTED if c in average else FAILED if c in record["failures"] else LEFT_OUT,
                ]
                for c in record["cohort"]
            ]
        )
    return rounds


def _values(run: RunData, index: dict[str, int]) -> list[list[list[float | None]]]:
    """Of each round a row for each valued client: the client, its value and standard error, its
    cumulative value and that one's error, its sum of values and that one's error."""
    kind = str(run.config.get("cumulative", "mean"))
    alpha = float(run.config.get("cumulative-alpha", 0.0))
    values: dict[str, list[float]] = {client: [] for client in index}
    squares: dict[str, list[float]] = {client: [] for client in index}
    averaged: dict[str, float] = {}  # variance of an exponential average
    rounds = []
    for record in run.rounds:
        row: list[list[float | None]] = []
        for client, value in record["shapley"].items():
            error = record["std_error"].get(client, 0.0)
            values[client].append(value)
            squares[client].append(error**2)
            of_sum = sqrt(fsum(squares[client]))
            of_cumulative: float | None = None  # of a rule that this version does not know
            if kind == "mean":
                of_cumulative = of_sum / len(values[client])
            elif kind.startswith("exponential"):
                first = 0.0 if kind == "exponential-from-zero" else error**2
                old = averaged.get(client)
                new = alpha**2 * (first if old is None else old) + ((1 - alpha) * error) ** 2
                averaged[client] = error**2 if old is None and kind == "exponential" else new
                of_cumulative = sqrt(averaged[client])
            cumulative = record["cumulative"].get(client)
            total = fsum(values[client])
            row.append([index[client], value, error, cumulative, of_cumulative, total, of_sum])
        rounds.append(row)
    return rounds


def _class_sums(ledger: Ledger) -> list[list[float] | None] | None:
    """Sums of values by class, in the order of the clients; None where the run has none."""
    if not ledger.class_sums:
        return None
    return [ledger.class_sums.get(account.client) for account in ledger.clients]
