"""A ledger as CSV, JSON or Markdown."""

import csv
import io
import json
import re
from dataclasses import asdict
from math import isfinite
from typing import Any

from common.errors import printable
from experiments.ledger import CLASS_SUMS, COLUMNS, Ledger

#: Residuals below this, in nats, are those of floating-point sums.
ROUNDING = 1e-12
#: Rounds that a Markdown ledger lists as furthest from efficiency.
WORST = 5


def as_csv(ledger: Ledger) -> str:
    """A line a client, numbers with all their digits.

    A client's id that a spreadsheet would take for a formula (it begins with = + - or @) gets an
    apostrophe before it, as spreadsheets themselves write such text.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for account in ledger.clients:
        row = asdict(account)
        row["client"] = re.sub(r"^(?=\s*[=+\-@＝＋－＠])", "'", printable(account.client))
        writer.writerow(row)
    return text.getvalue()


def as_json(ledger: Ledger) -> str:
    """All of the ledger, with what its columns mean; JSON has no infinity, so that is null."""
    columns = COLUMNS | ({"class_sums": CLASS_SUMS} if ledger.class_sums else {})
    return json.dumps(finite({"columns": columns} | asdict(ledger)), indent=2) + "\n"


def finite(value: Any) -> Any:
    """The value with None for each number in it that JSON cannot hold."""
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value


def as_markdown(ledger: Ledger) -> str:
    """The ledger to read: what was gained, each client's share, and where shares do not add up."""
    names = [c for c in COLUMNS if any(getattr(a, c) is not None for a in ledger.clients)]
    lines = [f"# Contributions to {cell(ledger.run)}", "", *sentences(ledger), ""]
    lines += [f"| {' | '.join(names)} |", "|---" + "|---:" * (len(names) - 1) + "|"]
    for account in ledger.clients:
        lines.append(f"| {' | '.join(cell(getattr(account, name)) for name in names)} |")
    worst = [g for g in ledger.rounds if abs(g.residual or 0.0) > ROUNDING]
    worst = sorted(worst, key=lambda g: -abs(g.residual or 0.0))[:WORST]
    if worst:
        lines += ["", f"The {len(worst)} rounds whose values are furthest from their gain:", ""]
        lines += ["| round | gain | sum of values | residual |", "|---:|---:|---:|---:|"]
        lines += [
            f"| {g.round} | {cell(g.gain)} | {cell(g.shared)} | {cell(g.residual)} |" for g in worst
        ]
    lines += ["", *(f"- {name}: {COLUMNS[name]}" for name in names)]
    return "\n".join(lines) + "\n"


def sentences(ledger: Ledger) -> list[str]:
    """What was gained and what of it is shared out, in words."""
    told = [f"{ledger.num_rounds} rounds ({ledger.state}), {len(ledger.clients)} clients."]
    if ledger.gain is not None and ledger.shared is not None and ledger.residual is not None:
        told.append(
            f"The validation loss {'fell' if ledger.gain >= 0 else 'rose'} by "
            f"{abs(ledger.gain):.6g} nats; the values of all rounds add up to {ledger.shared:.6g}, "
            f"residual {ledger.residual:.3g}."
        )
    return told + ledger.notes


def cell(value: object) -> str:
    """A value as Markdown shows it as it is, in a table or elsewhere."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.5g}".replace("inf", "∞")
    return re.sub(r"([\\`*_~$&\[\]<>|])", r"\\\1", printable(str(value)))


FORMATS = {"csv": as_csv, "json": as_json, "md": as_markdown}
