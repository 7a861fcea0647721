"""The checkpoint file of a run: written whole, and read only if all in it can be."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save

from server_app.state import ClientStats, ServerState

#: Arrays with a number for each client, and with one for each client and group.
BY_CLIENT = ("value", "count", "num_examples", "failures", "retry_round")
BY_GROUP = ("group_value", "group_gain")
NONE = np.zeros(0)


def state_bytes(state: ServerState) -> bytes:
    """The file's content; equal states have equal bytes."""
    stats = state.stats
    arrays: dict[str, NDArray[Any]] = {
        "params": state.params,
        **{key: getattr(stats, key) for key in BY_CLIENT},
    }
    if state.group_losses.size:
        arrays |= {key: getattr(stats, key) for key in BY_GROUP}
        arrays["group_losses"] = state.group_losses
    about = {"round": state.round, "val_loss": state.val_loss, "client_ids": stats.client_ids}
    # One metadata entry: safetensors writes several in a random order.
    return save(arrays, metadata={"about": json.dumps(about)})


def read_state(path: Path) -> ServerState:
    """The state, without `recent`, which is no part of the file.

    Raises:
        OSError, SafetensorError: not a file that can be read.
        ValueError: it lacks something, or holds what no state can.
    """
    with safe_open(path, framework="numpy") as file:
        about = _checked(json.loads((file.metadata() or {}).get("about", "null")))
        arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  not a dict
    n = len(about["client_ids"])
    if not arrays.keys() & {*BY_GROUP, "group_losses"}:  # none were told apart
        arrays |= {key: np.zeros((n, 0)) for key in BY_GROUP} | {"group_losses": np.zeros(0)}
    size, groups = (arrays.get(key, NONE).size for key in ("params", "group_losses"))
    form: dict[str, tuple[type, tuple[int, ...], float, float]] = {
        "params": (np.float32, (size,), -np.inf, np.inf),
        "value": (np.float64, (n,), -np.inf, np.inf),
        "count": (np.int64, (n,), 0, np.inf),
        "num_examples": (np.int64, (n,), 1, np.inf),
        "failures": (np.int64, (n,), 0, np.inf),
        "retry_round": (np.int64, (n,), 0, np.inf),
        "group_value": (np.float64, (n, groups), -np.inf, np.inf),
        "group_gain": (np.float64, (n, groups), -1, 1),
        "group_losses": (np.float64, (groups,), 0, np.inf),
    }
    if wrong := form.keys() ^ arrays.keys():
        raise ValueError(f"arrays are missing or too many: {', '.join(sorted(wrong))}")
    for key, (kind, shape, low, high) in form.items():
        array = arrays[key]
        if array.shape != shape:
            raise ValueError(f"{key} has the shape {array.shape}, not {shape}")
        if array.dtype != kind or not np.isfinite(array).all():
            raise ValueError(f"{key} is not all finite numbers of type {kind.__name__}")
        if ((array < low) | (array > high)).any():
            raise ValueError(f"{key} must be within {low} and {high}")
    params, losses = arrays.pop("params"), arrays.pop("group_losses")
    stats = ClientStats(tuple(about["client_ids"]), **arrays, recent=np.zeros(n))
    return ServerState(about["round"], params, stats, about["val_loss"], losses)


def _checked(about: Any) -> dict[str, Any]:
    """What the metadata say: the round, the validation loss and the clients' ids."""
    try:
        ids, number, loss = about["client_ids"], about["round"], about["val_loss"]
        good = all(isinstance(c, str) for c in ids) and len(set(ids)) == len(ids)
        good = good and isinstance(ids, list) and isinstance(number, int) and number >= 0
        good = good and isinstance(loss, float) and bool(np.isfinite(loss))
    except (KeyError, TypeError):
        good = False
    if not good:
        raise ValueError("its metadata do not tell the round, the validation loss and the clients")
    return dict(about)
