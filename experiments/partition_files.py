"""A public data set as files, one for each client and one for the server.

With these files a deployment trains on the examples that the simulation of the same configuration
trains on, and validates and tests on the same ones.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from client_app.data import client_indices
from common.config import RunConfig
from common.datasets import load_examples
from common.errors import GreedyfedError, RunFailedError

SERVER = "server.npz"
_OURS = re.compile(r"client-\d+\.npz|server\.npz")


class PartitionFilesError(GreedyfedError):
    """The files cannot be written as asked."""


class PartitionStoppedError(RunFailedError):
    """The files were begun, and cannot be written to their end."""


def write_partition(config: RunConfig, out: Path, *, overwrite: bool) -> Iterator[tuple[Path, int]]:
    """Write `client-<i>.npz` and `server.npz` into `out`; yields each file with its size.

    The server's examples are in the data set's order, so that dataset = "own" splits them into the
    same validation and test halves. With `overwrite`, clients of an earlier partition with more
    clients are removed.

    Raises:
        PartitionFilesError: files of a partition are there, or the folder cannot be used.
        PartitionStoppedError: a file cannot be written.
        DataError, PartitionError: as in a simulation.
    """
    examples = load_examples(config.data, config.seed)
    train, held_out = examples.train, examples.held_out
    clients = client_indices(config.data, config.seed)
    names = [f"client-{i}.npz" for i in range(len(clients))]
    try:
        out.mkdir(parents=True, exist_ok=True)
        earlier = {p.name for p in out.iterdir() if _OURS.fullmatch(p.name)}
        if earlier and not overwrite:
            raise PartitionFilesError(
                f"--out {out}: holds {min(earlier)} already; give another folder, or --overwrite"
            )
    except OSError as error:
        raise PartitionFilesError(
            f"--out {out}: cannot be written: {error}; give a folder that can"
        ) from error
    try:
        for name, mine in zip(names, clients, strict=True):
            yield _write(out / name, x=train.x[mine].numpy(), y=train.y[mine].numpy())
        classes = np.int64(examples.num_classes)  # the held-out examples may lack the last ones
        x, y = held_out.x.numpy(), held_out.y.numpy()
        yield _write(out / SERVER, x=x, y=y, num_classes=classes)
        for name in earlier - {*names, SERVER}:
            (out / name).unlink()
    except OSError as error:
        raise PartitionStoppedError(
            f"--out {out}: cannot be written: {error}; free space, then repeat with --overwrite"
        ) from error


def usage(out: Path) -> str:
    """How the files are used, for the terminal."""
    folder = out.resolve()
    return (
        "a client:   flower-supernode … --node-config "
        f'\'data-path="{folder}/client-0.npz" client-id="client-0"\'\n'
        f'the server: flwr run . … -c \'dataset="own" data-dir="{folder}/{SERVER}"\''
    )


def _write(path: Path, **arrays: Any) -> tuple[Path, int]:
    """Replace a file at once: readers see the old content or the new, never a part."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with open(partial, "wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return path, len(arrays["y"])
