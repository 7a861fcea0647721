"""`greedyfed data`: what is read from a file or folder of one's own, and who can use it."""

from collections.abc import Sequence
from math import exp, lgamma
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
import typer

if TYPE_CHECKING:
    from common.own_data import OwnData

_INPUTS = {
    "numbers": "numbers (float32)",
    "pixels": "pixels (float32)",
    "whole": "whole numbers (int64)",
    "bytes": "bytes (uint8), whether ids, counts or pixels nobody knows",
}
#: The share of splits with one class to validate that is worth a word.
_RISK = 1e-4
#: Names of a list that are shown.
_MOST = 20


def data(
    path: Annotated[
        str, typer.Argument(help="A file, a folder, or package.module:function, as a data-path.")
    ],
    label_column: Annotated[str, typer.Option(help="Of a client's table.")] = "label",
) -> None:
    """What is read from data of your own, what is left out, and who can use them."""
    from common.own_data import load_own_data

    for what, text in described(load_own_data(path, label_column=label_column), label_column):
        print(f"{what:<10}{text}")


def described(own: "OwnData", label_column: str = "label") -> list[tuple[str, str]]:
    """Lines of a name and a text. They tell ranges and counts, and are for the data's owner."""
    from common.datasets import DataError

    x, shape = own.data.x, tuple(own.data.x.shape[1:])
    present, many = np.unique(own.data.y.numpy(), return_counts=True)
    counts = dict(zip(present.tolist(), many.tolist(), strict=True))
    some = range(min(own.num_classes, _MOST))
    classes = [f"{_shown(own.class_name(k))} ({counts.get(k, 0)})" for k in some]
    lines = [
        ("form", own.form),
        ("examples", f"{len(x)}, each of shape {shape}"),
        ("inputs", f"{_INPUTS[own.inputs]}{_range(own)}"),
        ("classes", _listed(classes, own.num_classes)),
        *(("left out", why) for why in own.unfit.values()),
        *(("note", note) for note in own.notes),
    ]
    if len(shape) == 1:
        names = [_shown(name) for name in own.features[:_MOST]]
        lines.insert(3, ("features", _listed(names, shape[0]) if names else "without names"))
    try:
        if label_column != "label":
            raise DataError(f"{own.source}: a server's label column is 'label'; rename it there")
        own.check_server()
        lines.append(("server", f"yes, to validate and to test on{_if_split(own)}"))
        lines += (("server", note) for note in own.server_notes())
    except DataError as error:
        lines.append(("server", f"no: {str(error).removeprefix(f'{own.source}: ')}"))
    has = "these features" if own.features else "examples of this shape"
    kind = ", whole numbers," if own.inputs == "bytes" else ""
    lines.append(("client", f"yes, of a server that has {has}{kind} and these classes"))
    return lines


def _log_comb(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)


def _range(own: "OwnData") -> str:
    x = own.data.x
    if not x.numel():
        return ", but none of the columns is one"
    scale = 255 if x.dtype == torch.uint8 and own.inputs == "pixels" else 1
    return f", from {x.min().item() / scale:.6g} to {x.max().item() / scale:.6g}"


def _if_split(own: "OwnData") -> str:
    """Where a split may well leave one class: that of the default keys is tried."""
    from common.datasets import halves

    n, cut = len(own.data), len(own.data) // 2
    counts = np.unique(own.data.y.numpy(), return_counts=True)[1].tolist()
    if sum(exp(_log_comb(c, cut) - _log_comb(n, cut)) for c in counts if c >= cut) < _RISK:
        return ""
    halves(own.data, 0, cut, own.source)
    return ", with seed = 0; another may leave one class to validate"


def _listed(names: Sequence[str], count: int) -> str:
    return ", ".join(names) + (f", … ({count} in all)" if count > len(names) else "")


def _shown(name: str) -> str:
    """A name on one line, cut."""
    name = name if name.isprintable() else repr(name)
    return name if len(name) <= 40 else f"{name[:39]}…"
