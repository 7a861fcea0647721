"""`greedyfed ledger`: what each client contributed to a run, for those who split the credit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import fsum, hypot, inf
from statistics import stdev
from typing import Any

from experiments.run_data import Record, RunData
from server_app.privacy import releases, spent_epsilon

#: The columns of the ledger. Losses, values and gains are in nats.
COLUMNS = {
    "client": "the client's id",
    "examples": "its number of training examples n_k",
    "asked": "rounds in which it was asked to train",
    "answered": "rounds in which it sent an answer, usable or not",
    "failed": "rounds in which it gave no usable update, for a reason that the run records",
    "left_out": "rounds that went on without its update, which was a spare one, or broke off",
    "counted": "rounds whose average has its update: asked = counted + failed + left_out",
    "frequency": "asked / rounds of the run, with one that broke off",
    "epsilon": "the ε that it spent so far at the run's privacy-delta; infinite if without limit, "
    "none where the run reports none",
    "valued": "rounds with a Shapley value of it",
    "sum": "sum of its Shapley values",
    "sum_se": "standard error of the sum: root of the sum of squares of the rounds' own, which "
    "come from sampling coalitions; 0 where all were evaluated",
    "mean": "sum / valued",
    "mean_se": "sum_se / valued",
    "spread": "standard deviation of its values over rounds; none for a single one",
    "latest": "its Shapley value of the last round that valued it",
    "latest_se": "standard error of that value",
    "latest_round": "that round",
    "cumulative": "the value by which the run selects, after the last round that valued it",
    "share": "sum / total gain of the run: above 1 where others undid a part of it, below 0 where "
    "it did harm; the shares add up to 1 − residual / gain",
    "credit": "its part of a whole of which no client pays: max(sum, 0) / the sum of that over all",
    "marginal": "sum over rounds of its leave-one-out contribution: by how much higher the round's "
    "validation loss would have been without its update, all else the same",
    "marginal_rounds": "rounds in which that is known, as the valuation evaluated that coalition",
    "loss_without": "validation loss after the last such round, had its update been left out of it",
    "loss_with": "validation loss after that round as it was",
}
CLASS_SUMS = (
    "each client's sum of Shapley values in each class, or group of valuation-groups: those of a "
    "column in the order of its values; weighted by the groups' shares in the validation data they "
    "add up to its sum"
)


@dataclass(frozen=True)
class Account:
    """A client's line; `COLUMNS` says what each figure means, None is not known."""

    client: str
    examples: int | None
    asked: int
    answered: int
    failed: int
    left_out: int
    counted: int
    frequency: float
    epsilon: float | None
    valued: int
    sum: float | None
    sum_se: float | None
    mean: float | None
    mean_se: float | None
    spread: float | None
    latest: float | None
    latest_se: float | None
    latest_round: int | None
    cumulative: float | None
    share: float | None
    credit: float | None
    marginal: float | None
    marginal_rounds: int
    loss_without: float | None
    loss_with: float | None


@dataclass(frozen=True)
class RoundGain:
    """What a round gained, and what of it its values share out; in nats.

    Efficiency makes the two equal; `residual` is what is left where values are truncated, sampled,
    or computed on a part of the validation examples.
    """

    round: int
    gain: float | None
    shared: float | None
    residual: float | None


@dataclass(frozen=True)
class Ledger:
    """Every client's account, largest sum of values first, and what they add up to.

    `gain` is the fall of the validation loss over the rounds that were valued, `shared` the sum of
    all values, `residual` their difference. `notes` say what limits the figures. `class_sums` has
    each client's sum of values by class where the run recorded them.
    """

    run: str
    state: str
    num_rounds: int
    gain: float | None
    shared: float | None
    residual: float | None
    notes: list[str]
    clients: list[Account]
    rounds: list[RoundGain]
    class_sums: dict[str, list[float]]


def ledger_of(run: RunData) -> Ledger:
    """The accounts of a run, as far as it has gone."""
    rounds, notes = _gains(run.rounds), list[str]()
    valued = [g for g in rounds if g.shared is not None]
    gains = [g.gain for g in valued if g.gain is not None]
    gain = fsum(gains) if gains else None
    if not valued:
        notes.append("The run has no values: nothing is shared out.")
    elif "gain" not in run.rounds[0]:
        notes.append(
            "The run did not record what its first round gained; it is taken to be the sum of that "
            "round's values."
        )
    if broken := _broken_off(run):
        notes.append(
            f"Round {broken['round']} broke off: {len(broken['failures'])} of "
            f"{len(broken['asked'])} clients asked failed; `greedyfed status` says why."
        )
    if gain is not None and gain <= 0:
        notes.append("The validation loss did not fall: there is no improvement to share.")
    if run.config.get("valuation-examples"):
        notes.append(
            "Values are computed on a part of the validation examples, gains on all: the residual "
            "has the difference too."
        )
    return Ledger(
        run=run.run_id,
        state=run.state,
        num_rounds=len(run.rounds),
        gain=gain,
        shared=fsum(g.shared for g in valued if g.shared is not None) if valued else None,
        residual=fsum(g.residual for g in valued if g.residual is not None) if valued else None,
        notes=notes,
        clients=_with_credit(sorted(_accounts(run, gain), key=_rank)),
        rounds=rounds,
        class_sums=_class_sums(run.rounds),
    )


def answers(run: RunData) -> list[set[str]]:
    """Of each round, who sent an answer; without events, who did not fail by its silence."""
    told = [set[str]() for _ in run.rounds]
    observed = set[int]()
    for event in run.events:
        if event["round"] <= len(told):
            observed.add(event["round"])
            if event["event"] == "answered":
                told[event["round"] - 1].add(event["client"])
    for record, clients in zip(run.rounds, told, strict=True):
        if record["round"] not in observed:
            silent = {c for c, why in record["failures"].items() if why.startswith("no answer")}
            clients |= set(record["cohort"]) - silent
    return told


def counted(record: Record, answered: set[str]) -> set[str]:
    """Whose updates the average of a round has."""
    return set(record["shapley"]) or answered - record["failures"].keys()


def _broken_off(run: RunData) -> Record | None:
    """The round that ended without a record, as it does when too few clients give an update."""
    return run.unfinished if run.state == "stopped" else None


def _gains(records: Sequence[Record]) -> list[RoundGain]:
    gains = list[RoundGain]()
    before: float | None = None
    for record in records:
        values = record["shapley"].values()
        shared = fsum(values) if values else None
        gain = record.get("gain")  # rounds of old runs lack it
        if gain is None:
            gain = shared if before is None else before - record["val_loss"]
        residual = None if shared is None or gain is None else gain - shared
        gains.append(RoundGain(record["round"], gain, shared, residual))
        before = record["val_loss"]
    return gains


def _accounts(run: RunData, gain: float | None) -> Iterator[Account]:
    told = answers(run)
    mine: dict[str, list[tuple[Record, set[str]]]] = {client: [] for client in run.clients}
    for record, answered in zip(run.rounds, told, strict=True):
        for client in record["cohort"]:
            mine[client].append((record, answered))
    epsilons = _epsilons(run)
    broken = _broken_off(run) or {"asked": (), "answered": (), "failures": {}}
    num_rounds = len(run.rounds) + bool(broken["asked"])
    for client, rounds in mine.items():
        asked = len(rounds) + (client in broken["asked"])
        failed = sum(client in record["failures"] for record, _ in rounds)
        failed += client in broken["failures"]
        num_counted = sum(client in counted(record, answered) for record, answered in rounds)
        yield Account(
            client=client,
            examples=run.clients[client].get("num_examples"),
            asked=asked,
            answered=sum(client in answered for _, answered in rounds)
            + (client in broken["answered"]),
            failed=failed,
            left_out=asked - failed - num_counted,
            counted=num_counted,
            frequency=asked / num_rounds if num_rounds else 0.0,
            epsilon=epsilons.get(client),
            **_values(client, [record for record, _ in rounds], gain),
        )


def _values(client: str, records: list[Record], gain: float | None) -> dict[str, Any]:
    valued = [r for r in records if client in r["shapley"]]
    known = [r for r in valued if client in r.get("leave_one_out", {})]
    figures = dict.fromkeys(list(COLUMNS)[list(COLUMNS).index("valued") :])
    figures |= {"valued": len(valued), "marginal_rounds": len(known)}
    if valued:
        values, last = [r["shapley"][client] for r in valued], valued[-1]
        total = fsum(values)
        error = hypot(*(r["std_error"].get(client, 0.0) for r in valued))
        figures |= {
            "sum": total,
            "sum_se": error,
            "mean": total / len(valued),
            "mean_se": error / len(valued),
            "spread": stdev(values) if len(values) > 1 else None,
            "latest": values[-1],
            "latest_se": last["std_error"].get(client),
            "latest_round": last["round"],
            "cumulative": last["cumulative"].get(client),
            "share": total / gain if gain is not None and gain > 0 else None,
        }
    if known:
        last = known[-1]
        figures |= {
            "marginal": fsum(r["leave_one_out"][client] for r in known),
            "loss_without": last["val_loss"] + last["leave_one_out"][client],
            "loss_with": last["val_loss"],
        }
    return figures


def _epsilons(run: RunData) -> dict[str, float]:
    """As the run reports them at its end; before it, from its events."""
    told = {c: about["epsilon"] for c, about in run.clients.items() if "epsilon" in about}
    if told:  # JSON has no infinity
        return {c: inf if epsilon is None else epsilon for c, epsilon in told.items()}
    delta, clip_norm = (float(run.config.get(k, 0.0)) for k in ("privacy-delta", "clip-norm"))
    if run.summary is not None or not (delta and clip_norm and find_spec("opacus")):
        return {}
    released = releases(run.events, run.rounds)
    return {c: spent_epsilon(released.get(c, {}), clip_norm, delta) for c in run.clients}


def _class_sums(records: Sequence[Record]) -> dict[str, list[float]]:
    parts: dict[str, list[list[float]]] = {}
    for record in records:
        for client, by_class in record.get("class_shapley", {}).items():
            parts.setdefault(client, []).append(by_class)
    return {c: [fsum(column) for column in zip(*rows, strict=True)] for c, rows in parts.items()}


def _with_credit(accounts: list[Account]) -> list[Account]:
    positive = fsum(max(a.sum or 0.0, 0.0) for a in accounts)
    return [
        replace(a, credit=max(a.sum, 0.0) / positive) if positive and a.sum is not None else a
        for a in accounts
    ]


def _rank(account: Account) -> tuple[float, int, str]:
    value = -account.sum if account.sum is not None else inf
    return value, len(account.client), account.client
