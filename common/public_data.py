"""Public data sets: digits, MNIST and FashionMNIST, and one that is made.

torchvision and scikit-learn are loaded only when used.
"""

import errno
from collections.abc import Callable
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import torch
from numpy.typing import NDArray

from common.config import DataConfig
from common.datasets import DataError, Dataset
from common.errors import one_line
from common.seeding import Stream, rng_for


def load_digits() -> tuple[Dataset, Dataset]:
    """scikit-learn's 1,797 handwritten digits of 8 × 8 pixels; every third one is held out."""
    from sklearn import datasets

    x, y = datasets.load_digits(return_X_y=True)
    images = torch.from_numpy(x.astype(np.float32) / 16).view(-1, 1, 8, 8)
    held_out = torch.arange(len(y)) % 3 == 2
    classes = torch.from_numpy(y.astype(np.int64))
    return Dataset(images[~held_out], classes[~held_out]), Dataset(
        images[held_out], classes[held_out]
    )


def load_mnist(config: DataConfig, train: bool) -> Dataset:
    from torchvision import datasets

    kind = {"mnist": datasets.MNIST, "fmnist": datasets.FashionMNIST}[config.dataset]
    if not Path(config.data_dir).is_dir() and not config.download:
        raise DataError(
            f"data-dir = {config.data_dir!r}: no such folder (seen from {Path.cwd()}); "
            "give an existing one, or set download = true"
        )
    fetched = partial(kind, config.data_dir, train=train, download=True)
    try:
        try:
            raw = kind(config.data_dir, train=train)
        except RuntimeError as error:
            if not config.download or "Dataset not found" not in str(error):
                raise
            raw = downloaded(fetched, config.data_dir, config.dataset)
    except (OSError, DataError):
        raise
    except Exception as error:  # torchvision asserts, and computes with what a file says
        layout = f"in torchvision's layout ({kind.__name__}/raw/…)"
        if "Dataset not found" in str(error):
            why = f"is not there {layout}; give the folder above, or set download = true"
        else:
            why = f"cannot be read {layout}: {one_line(error)}; remove it and set download = true"
        raise DataError(f"data-dir = {config.data_dir!r}: {config.dataset} {why}") from error
    if len(raw.data) != len(raw.targets):
        raise DataError(
            f"data-dir = {config.data_dir!r}: {config.dataset} has {len(raw.data)} images and "
            f"{len(raw.targets)} labels; remove it and set download = true"
        )
    return Dataset(raw.data.unsqueeze(1), raw.targets)


def downloaded(fetch: Callable[[], Any], data_dir: str, name: str) -> Any:
    """What `fetch`, of torchvision, downloads.

    Raises:
        DataError: it cannot be downloaded.
        OSError: the disk cannot take it.
    """
    try:
        return fetch()
    except (OSError, RuntimeError, HTTPException, ValueError) as error:
        if isinstance(error, OSError) and _is_of_disk(error):
            raise
        raise DataError(
            f"data-dir = {data_dir!r}: {name} cannot be downloaded: {one_line(error)}; check the "
            "network or the proxy, or put the files there"
        ) from error


def _is_of_disk(error: OSError) -> bool:
    """Whether the files are at fault, not the network."""
    named = error.filename is not None and not isinstance(error, URLError)  # there it is an address
    return named or error.errno in (errno.ENOSPC, errno.EDQUOT)


def make_synthetic(config: DataConfig, seed: int) -> tuple[Dataset, NDArray[np.int64], Dataset]:
    """Synthetic(α, β) of Li et al. (2020), "Federated Optimization in Heterogeneous Networks".

    Client k labels x ∈ R^60 by argmax(W_k x + b_k). W_k, b_k ~ N(u_k, 1) with u_k ~ N(0, α);
    x ~ N(v_k, Σ), Σ_jj = j^-1.2, v_k ~ N(B_k, 1), B_k ~ N(0, β). Sizes are 50 + ⌊lognormal(4, 2)⌋,
    cut at 10,000. α and β are the variances. A fifth of each client's examples is held out for the
    server.
    """
    if config.num_clients < 2:
        raise DataError("num-clients = 0: `synthetic` is made per client; set num-clients")
    scale = np.arange(1, 61) ** -0.6
    xs, ys, owners, held = [], [], [], []
    for client in range(config.num_clients):
        rng = rng_for(seed, Stream.SYNTHETIC, client)
        u = rng.normal(0, np.sqrt(config.synthetic_alpha))
        v = rng.normal(rng.normal(0, np.sqrt(config.synthetic_beta)), 1, size=60)
        w, b = rng.normal(u, 1, size=(60, 10)), rng.normal(u, 1, size=10)
        n = 50 + int(min(rng.lognormal(4, 2), 9_950))
        x = rng.normal(v, scale, size=(n, 60))
        xs.append(x.astype(np.float32))
        ys.append((x @ w + b).argmax(axis=1))
        owners.append(np.full(n, client))
        held.append(np.arange(n) < n // 5)
    data = Dataset(torch.from_numpy(np.concatenate(xs)), torch.from_numpy(np.concatenate(ys)))
    owner, held_out = np.concatenate(owners), np.concatenate(held)
    train, rest = np.flatnonzero(~held_out), np.flatnonzero(held_out)
    return data.take(train), owner[train], data.take(rest)
