"""A client's own data in the server's terms: features and classes by name, inputs of its kind."""

import logging
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from common.arrays import ambiguous
from common.columns import EXACT
from common.datasets import DataError, Dataset, inputs_of
from common.names import counted, quoted
from common.own_data import OwnData
from common.task import Task

log = logging.getLogger("greedyfed.client")
#: How far images may be outside [0, 1] beside pixels; resizing does that.
_MARGIN = 0.1


@lru_cache(maxsize=4096)
def agreed(own: OwnData, task: Task) -> Dataset:
    """A client's examples as the server's task has them: columns in its order, its class numbers.

    What is left out of the data is said in the client's log, once by a process.

    Raises:
        DataError: they are not of the task, and training on them would be wrong.
    """
    x, extra = _columns(own, task)
    data = Dataset(_inputs(x, own, task), _labels(own, task))
    for note in own.notes:
        log.warning("%s: %s", own.source, note)
    if extra:
        log.warning(
            "%s: %s left out that the server does not have: %s",
            own.source,
            counted(len(extra), "feature"),
            quoted(extra),
        )
    return data


def _columns(own: OwnData, task: Task) -> tuple[Tensor, Sequence[str]]:
    """x with the server's columns, and the names of those that it does not have."""
    x, columns = own.data.x, (*own.features, *own.unfit)
    shape = (len(columns),) if columns else tuple(x.shape[1:])
    for name in task.features:
        if name in own.unfit:
            raise DataError(f"{own.source}: {own.unfit[name]}")
    same = own.features == task.features and not own.unfit
    if len(shape) != len(task.input_shape) or (same and shape != task.input_shape):
        raise DataError(
            f"{own.source}: an example has shape {shape}, the server's have {task.input_shape}; "
            "convert the examples (images are channels, height, width)"
        )
    if same:
        return x, ()
    if not task.features:
        raise DataError(
            f"{own.source}: the features are named {quoted(columns)}, the server's have no "
            "names; save feature_names in the server's .npz"
        )
    if not columns:
        raise DataError(
            f"{own.source}: the features have no names, the server's are {quoted(task.features)}; "
            "save feature_names in the .npz"
        )
    place = {name: k for k, name in enumerate(own.features)}
    if missing := [name for name in task.features if name not in place]:
        raise DataError(
            f"{own.source}: lacks the server's feature{'s' * (len(missing) > 1)} "
            f"{quoted(missing)}; {_remedy(missing, own)}"
        )
    known = set(task.features)
    extra = [name for name in columns if name not in known]
    return x[:, [place[name] for name in task.features]], extra


def _remedy(missing: Sequence[str], own: OwnData) -> str:
    if taken := [name for name in missing if name in own.index]:
        return f"{quoted(taken)} was taken for a row index, so write it as a column"
    return "add or rename columns"


def _labels(own: OwnData, task: Task) -> Tensor:
    """y (n,) in the server's numbers of the classes."""
    theirs = task.classes or tuple(map(str, range(task.num_classes)))
    number = {name: k for k, name in enumerate(theirs) if k not in task.unseen}
    y, names = own.data.y, own.classes
    if task.classes and own.written and not own.classes:  # texts are compared as they stand
        y, names = own.written
    used, which = np.unique(y.numpy(), return_inverse=True)
    mine = [names[label] if names else str(label) for label in used]
    unknown = [name for name in mine if name not in number]
    if not unknown:
        return torch.tensor([number[name] for name in mine])[torch.from_numpy(which)]
    if empty := [name for name in unknown if name in theirs]:
        raise DataError(
            f"{own.source}: the server has no example of class {quoted(empty, 3)}, and no name "
            "for it; number the classes as there, or say num_classes in the server's .npz"
        )
    none, named = unknown == mine, f" {quoted(mine, 3)}" if own.declared else ""
    if none and own.classes and not task.classes:
        raise DataError(
            f"{own.source}: the classes are named{named}, the server's are numbers without names; "
            "save class_names in the server's .npz"
        )
    if none and task.classes and not names:
        raise DataError(
            f"{own.source}: the classes are numbers without names, the server's are "
            f"{quoted(theirs)}; save class_names in the .npz"
        )
    if none and not own.declared:  # another column than the labels may quote examples
        raise DataError(
            f"{own.source}: none of the {counted(len(mine), 'class', 'classes')} among the labels "
            f"is the server's, {quoted(theirs)}; rename them, or give the right label column"
        )
    raise DataError(
        f"{own.source}: the server has no class {quoted(unknown, 3)}, its classes are "
        f"{quoted(theirs)}; rename the class, or leave its examples out"
    )


def _inputs(x: Tensor, own: OwnData, task: Task) -> Tensor:
    """x of the type and the range that the server's inputs have."""
    if task.inputs == "whole":
        if x.is_floating_point() and bool(((x != x.floor()) | (x.abs() > EXACT)).any()):
            raise DataError(
                f"{own.source}: x is not all whole numbers, as the server's inputs are, such as "
                "ids; save them as int64"
            )
        return x.long()
    if own.inputs == "bytes":
        raise DataError(f"{own.source}: {ambiguous(x.shape[1:])}")
    if x.dtype == torch.uint8:
        x = x.float().div_(255)
    if own.inputs == "whole":
        if int(x.abs().max()) > EXACT:
            raise DataError(
                f"{own.source}: x holds whole numbers beyond {EXACT}, more than the float32 of the "
                "server's inputs can tell apart; scale them, or save the server's as int64 too"
            )
        x = x.float()
    if task.inputs == "pixels" and (x.min() < -_MARGIN or x.max() > 1 + _MARGIN):
        raise DataError(
            f"{own.source}: x goes beyond 0 to 1, the range of the server's images; scale it, or "
            "save pixels as uint8"
        )
    if task.inputs == "numbers" and inputs_of(x) == "pixels":
        raise DataError(
            f"{own.source}: images are from 0 to 1 (as uint8 pixels become), the server's are not; "
            "scale both in one way"
        )
    return x
