"""A client's own data, and what its operator or the simulation says of it."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from client_app.agreement import agreed
from common.config import DataConfig, HeterogeneityConfig, RunConfig, Scalar
from common.datasets import Dataset, load_splits
from common.errors import GreedyfedError
from common.fields import MAX_EPOCHS, MAX_FIGURE
from common.heterogeneity import local_epochs, noise_levels
from common.own_data import load_own_data
from common.partition import PartitionError, partition
from common.seeding import Stream, rng_for
from common.task import Task
from common.wire import MAX_CLIENT_ID, ClientInfo

#: What a node_config may say; an operator may keep notes of other names there.
NODE_KEYS = (
    *("client-id", "data-path", "label-column", "local-epochs", "noise-sigma"),
    *("partition-id", "num-partitions"),
)


class ClientError(GreedyfedError):
    """This client's node_config is not usable."""


@dataclass(frozen=True)
class ClientData:
    """Who this client is, its examples, and how it trains."""

    info: ClientInfo
    data: Dataset
    local_epochs: int
    noise_sigma: float
    #: The noise protects the client, so the server must not be able to draw it again.
    secret_noise: bool = False
    batch_size: int = 0  # 0: the n-th part of the examples that batches-per-epoch says


def my_data(
    node_config: Mapping[str, Scalar], config: RunConfig, task: Task, node_id: int
) -> ClientData:
    """The data at the node's `data-path`, or else the partition that node_config names.

    The node's own `client-id`, `local-epochs` and `noise-sigma` win over the simulated ones; what
    a node sets for itself is not reported to the server, nor anything of a `data-path` but its
    number of examples.

    Raises:
        ClientError: naming the key of node_config, its value, the rule and the remedy.
        DataError: the data cannot be read, or do not agree with the task.
    """
    for key in node_config.keys() - NODE_KEYS:  # a key that is misspelt would do nothing
        if near := difflib.get_close_matches(key.lower().replace("_", "-"), NODE_KEYS, n=1):
            raise ClientError(f"{key:.50}: unknown key of node_config; did you mean {near[0]!r}?")
    index, count = node_config.get("partition-id"), node_config.get("num-partitions")
    if "data-path" in node_config:
        path = _text(node_config, "data-path")
        own = load_own_data(path, label_column=_text(node_config, "label-column", "label"))
        data = agreed(own, task)
        info = ClientInfo(f"node-{node_id}", len(data))
        me = ClientData(info, data, config.training.local_epochs, noise_sigma=0.0)
    elif config.data.dataset == "own":
        raise ClientError(
            "data-path is missing: with dataset = 'own' each client has its own examples; "
            "give their path by --node-config"
        )
    elif isinstance(index, int) and isinstance(count, int) and 0 <= index < count:
        me = simulated_client(config, index)
    else:
        raise ClientError(
            f"partition-id = {index!r}, num-partitions = {count!r}: a client of a public data set "
            "needs 0 <= partition-id < num-partitions; give both by --node-config, or a data-path"
        )
    if "client-id" in node_config:
        client_id = _text(node_config, "client-id")
        if not client_id.isprintable() or len(client_id) > MAX_CLIENT_ID:
            raise ClientError(
                f"client-id = {client_id!r:.50}: must be 1 to {MAX_CLIENT_ID} printable "
                "characters; mend --node-config"
            )
        me = replace(me, info=replace(me.info, client_id=client_id))
    if "local-epochs" in node_config:
        epochs = node_config["local-epochs"]
        if isinstance(epochs, bool) or not isinstance(epochs, int) or not 0 < epochs <= MAX_EPOCHS:
            raise ClientError(
                f"local-epochs = {epochs!r}: must be 1 to {MAX_EPOCHS}; correct --node-config"
            )
        me = replace(me, local_epochs=epochs, info=replace(me.info, local_epochs=None))
    if "noise-sigma" in node_config:
        sigma = node_config["noise-sigma"]
        if isinstance(sigma, bool | str) or not 0 <= sigma <= MAX_FIGURE:
            raise ClientError(
                f"noise-sigma = {sigma!r}: must be 0 to {MAX_FIGURE:g}; correct --node-config"
            )
        info = replace(me.info, noise_sigma=None)
        me = replace(me, noise_sigma=float(sigma), secret_noise=True, info=info)
    return me


def _text(node_config: Mapping[str, Scalar], key: str, default: str = "") -> str:
    value = node_config.get(key, default)
    if not isinstance(value, str) or not value:
        raise ClientError(f"{key} = {value!r}: must be a text, not empty; mend --node-config")
    return value


def simulated_client(config: RunConfig, index: int) -> ClientData:
    """Client `index` of the num-clients that a public data set is split over.

    In a centralised run each is a client with the pooled examples of all, who makes E·B steps on
    batches of M/N of them, without straggling or noise; one of them is selected.

    Raises:
        DataError, PartitionError: the data set cannot be read, or not be split so.
    """
    epochs = config.training.local_epochs
    if config.selection.algorithm == "centralised":
        pool = _pool(config.data, config.seed)
        share = config.selection.clients_per_round / config.data.num_clients
        info = ClientInfo(f"partition-{index}", len(pool), local_epochs=epochs, noise_sigma=0.0)
        return ClientData(info, pool, epochs, 0.0, batch_size=max(1, int(share * len(pool))))
    known = _simulated_clients(config.data, config.seed, config.heterogeneity, epochs)
    if index not in known:  # every round asks again
        known[index] = _simulated_client(
            config.data, config.seed, config.heterogeneity, epochs, index
        )
    return known[index]


@lru_cache(maxsize=1)
def _simulated_clients(
    data: DataConfig, seed: int, heterogeneity: HeterogeneityConfig, most_epochs: int
) -> dict[int, ClientData]:
    """The clients of one configuration that were made so far; a process works at one."""
    return {}


def _simulated_client(
    data: DataConfig, seed: int, heterogeneity: HeterogeneityConfig, most_epochs: int, index: int
) -> ClientData:
    splits = load_splits(data, seed)
    mine = splits.train.take(client_indices(data, seed)[index])
    fraction, sigma = heterogeneity.straggler_fraction, heterogeneity.noise_sigma
    epochs = int(local_epochs(seed, data.num_clients, most_epochs, fraction)[index])
    noise = float(noise_levels(seed, data.num_clients, sigma)[index])
    histogram = np.bincount(mine.y.numpy(), minlength=splits.num_classes)
    info = ClientInfo(f"partition-{index}", len(mine), tuple(histogram.tolist()), epochs, noise)
    return ClientData(info, mine, epochs, noise)


@lru_cache(maxsize=1)
def _pool(data: DataConfig, seed: int) -> Dataset:
    """All clients' examples, on which a centralised run trains: the paper's upper bound."""
    everyone = np.sort(np.concatenate(client_indices(data, seed)))
    return load_splits(data, seed).train.take(everyone)


def client_indices(data: DataConfig, seed: int) -> list[NDArray[np.int64]]:
    """Which training examples each of the N simulated clients has; raises PartitionError."""
    parts = _parts(data, seed)
    if isinstance(parts, PartitionError):
        raise parts
    return parts


@lru_cache(maxsize=2)
def _parts(data: DataConfig, seed: int) -> list[NDArray[np.int64]] | PartitionError:
    """The examples of every client; a failure is returned, since only that is cached."""
    splits = load_splits(data, seed)
    if splits.owner is not None:
        return [np.flatnonzero(splits.owner == k) for k in range(data.num_clients)]
    try:
        return partition(
            splits.train.y.numpy(),
            data.num_clients,
            scheme=data.partition,
            alpha=data.dirichlet_alpha,
            min_examples=data.min_examples_per_client,
            rng=rng_for(seed, Stream.PARTITION),
        )
    except PartitionError as error:
        return error
