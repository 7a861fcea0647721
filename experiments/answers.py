"""What an operator asks of a run, answered in sentences: who helped, how we know, what it cost."""

from collections import Counter
from math import fsum
from statistics import median

from experiments.ledger import Account, Ledger
from experiments.run_data import RunData

_ENDS = {
    "exact": "evaluated all coalitions",
    "converged": "ended when the standard errors were small enough",
    "between": "gave zeros, since the round changed the loss by less than ε",
    "cap": "ended when the permutations or coalitions ran out",
    "budget": "ended when the budget ran out",
}
_PHASES = {
    "select": "selecting clients",
    "clients": "waiting for clients",
    "average": "averaging",
    "value": "valuing",
    "evaluate": "evaluating",
}


def answers_of(run: RunData, ledger: Ledger) -> dict[str, list[str]]:
    """Sentences under `helped`, `known` and `cost`."""
    told = ["No round has ended yet."]
    broken = _unfinished(run)
    if not run.rounds:
        return {"helped": broken + told, "known": told, "cost": told}
    return {"helped": broken + _helped(ledger), "known": _known(run, ledger), "cost": _cost(run)}


def _unfinished(run: RunData) -> list[str]:
    """Of the round that broke off, or goes on with failures: who was asked, and why each failed."""
    if run.unfinished is None:
        return []
    asked, failures = run.unfinished["asked"], run.unfinished["failures"]
    end = "goes on" if run.state == "running" else "broke off"
    told = [
        f"Round {run.unfinished['round']} {end}: {_count(len(asked), 'client')} asked, "
        f"{len(failures)} failed. Asked: {_listed(asked, ', ')}."
    ]
    if failures:
        reasons = [f"{client}: {why}" for client, why in failures.items()]
        told.append(f"Why: {_listed(reasons, '; ')}.")
    return told


def _listed(parts: list[str], between: str) -> str:
    more = f"{between}and {len(parts) - 10} more" if len(parts) > 10 else ""
    return between.join(parts[:10]) + more


def _helped(ledger: Ledger) -> list[str]:
    valued = [a for a in ledger.clients if a.sum is not None]
    if not valued:
        return ["This run values nobody, so that it cannot tell who helped (valuation = none)."]
    best, worst = valued[0], valued[-1]
    told = [
        f"{best.client} helped most: its Shapley values of {_count(best.valued, 'round')} add up "
        f"to {_signed(best)} nats of validation loss."
    ]
    if len(valued) > 1:
        helpful = [a for a in valued if a.sum and a.sum > 0]
        told.append(
            f"{len(helpful)} of {len(valued)} valued clients have a positive sum; the lowest is "
            f"{worst.client}'s, {_signed(worst)}."
        )
        if len(helpful) > 5:
            five = fsum(a.credit or 0.0 for a in helpful[:5])
            told.append(f"The first five hold {five:.1%} of the credit.")
    if best.loss_without is not None and best.loss_with is not None:
        told.append(
            f"Without {best.client} the last round that had it would have ended at a validation "
            f"loss of {best.loss_without:.4f} in place of {best.loss_with:.4f}."
        )
    return told


def _known(run: RunData, ledger: Ledger) -> list[str]:
    told = []
    if ledger.gain is not None and ledger.shared is not None and ledger.residual is not None:
        told.append(
            f"The values of a round share out its gain on the server's validation data: of "
            f"{ledger.gain:.5f} nats in all {ledger.shared:.5f}, residual {ledger.residual:.2g}."
        )
    ends = Counter(r["valuation_end"] for r in run.rounds if r["shapley"])
    parts = [f"{n} {_ENDS.get(end, end)}" for end, n in ends.most_common()]
    if parts:
        evaluations = median(r["evaluations"] for r in run.rounds if r["shapley"])
        told.append(
            f"Of {_count(sum(ends.values()), 'valuation')} {', '.join(parts)}; the median is "
            f"{_count(evaluations, 'evaluation')}."
        )
        valued = [a for a in ledger.clients if a.sum is not None]
        if any(a.sum_se for a in valued):
            told.append(
                f"{sum(map(_is_sure, valued))} of {len(valued)} sums are further from 0 than two "
                "standard errors."
            )
        else:
            told.append("They have no sampling error.")
    return told + ledger.notes


def _cost(run: RunData) -> list[str]:
    totals = [fsum(r["seconds"].values()) for r in run.rounds]
    whole = fsum(totals)
    phases = Counter[str]()
    for record in run.rounds:
        phases.update(record["seconds"])
    valued = any(r["shapley"] for r in run.rounds)
    parts = [
        f"{phases[p] / whole:.0%} {_PHASES.get(p, p)}"
        for p, _ in [p for p in phases.most_common() if valued or p[0] != "value"][:3]
        if whole and phases[p] / whole >= 0.005
    ]
    down, up = (sum(r["bytes"].get(way, 0) for r in run.rounds) for way in ("down", "up"))
    n = len(run.rounds)
    asked = sum(len(r["cohort"]) for r in run.rounds)
    failures = sum(len(r["failures"]) for r in run.rounds)
    who = {c for r in run.rounds for c in r["failures"]}
    told = [
        f"A round takes {_seconds(median(totals))} (median): {', '.join(parts)}.",
        f"It sends {_size(down / n)} to the clients and {_size(up / n)} back (mean).",
    ]
    if failures:
        told.append(
            f"{failures} of {_count(asked, 'request')} failed, by {_count(len(who), 'client')}."
        )
    else:
        told.append(f"None of {_count(asked, 'request')} to clients failed.")
    return told


def figures_of(run: RunData, ledger: Ledger) -> list[dict[str, str]]:
    """The run's key figures: a label, a value, and a remark."""
    each = f"{run.config.get('clients-per-round', '?')} a round"
    if run.config.get("algorithm") == "centralised":
        each = "their examples trained on as one"
    figures = [
        ("Rounds", f"{len(run.rounds)}", f"of {run.num_rounds}, {run.state}"),
        ("Clients", f"{len(ledger.clients)}", each),
    ]
    if run.rounds:
        last = run.rounds[-1]
        best = max(run.rounds, key=lambda r: float(r["test_accuracy"]))
        fell = "nats"
        if ledger.gain is not None:
            fell = f"{'fell' if ledger.gain >= 0 else 'rose'} by {abs(ledger.gain):.4f}"
        seconds = fsum(s for r in run.rounds for s in r["seconds"].values())
        traffic = sum(b for r in run.rounds for b in r["bytes"].values())
        figures = [
            (
                "Test accuracy",
                f"{last['test_accuracy']:.1%}",
                f"best {best['test_accuracy']:.1%} in round {best['round']}",
            ),
            ("Validation loss", f"{last['val_loss']:.4f}", fell),
            *figures,
            ("Time", _seconds(seconds), f"{_seconds(seconds / len(run.rounds))} a round"),
            ("Traffic", _size(traffic), f"{_size(traffic / len(run.rounds))} a round"),
        ]
    return [{"label": label, "value": value, "note": note} for label, value, note in figures]


def _is_sure(account: Account) -> bool:
    return abs(account.sum or 0.0) > 2 * (account.sum_se or 0.0)


def _signed(account: Account) -> str:
    error = f" ± {account.sum_se:.4f}" if account.sum_se else ""
    return f"{account.sum:+.4f}{error}".replace("-", "−")


def _count(n: float, what: str) -> str:
    return f"{n:g} {what}{'s' * (n != 1)}"


def _seconds(s: float) -> str:
    if s < 1:
        return f"{1000 * s:.3g} ms"
    if s < 120:
        return f"{s:.3g} s"
    return f"{s / 60:.3g} min" if s < 7200 else f"{s / 3600:.3g} h"


def _size(b: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if b < 1000 or unit == "GB":
            break
        b /= 1000
    return f"{b:.3g} {unit}"
