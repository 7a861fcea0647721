"""A client's own data, and what its operator or the simulation says of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from common.config import DataConfig, HeterogeneityConfig, RunConfig, Scalar
from common.datasets import Dataset, load_splits
from common.errors import GreedyfedError
from common.heterogeneity import local_epochs, noise_levels
from common.partition import PartitionError, partition
from common.seeding import Stream, rng_for
from common.wire import ClientInfo


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


def my_data(node_config: Mapping[str, Scalar], config: RunConfig) -> ClientData:
    """The data of the partition that node_config names.

    The node's own `local-epochs` and `noise-sigma` win over the simulated ones; what a node sets
    for itself is not reported to the server.

    Raises:
        ClientError: naming the key of node_config, its value, the rule and the remedy.
    """
    index, count = node_config.get("partition-id"), node_config.get("num-partitions")
    if not (isinstance(index, int) and isinstance(count, int) and 0 <= index < count):
        raise ClientError(
            f"partition-id = {index!r}, num-partitions = {count!r}: a client of a public data set "
            "needs 0 <= partition-id < num-partitions; give both by --node-config"
        )
    me = _simulated_client(
        config.data, config.seed, config.heterogeneity, config.training.local_epochs, index
    )
    if "local-epochs" in node_config:
        epochs = node_config["local-epochs"]
        if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
            raise ClientError(f"local-epochs = {epochs!r}: must be 1 or more; mend --node-config")
        me = replace(me, local_epochs=epochs, info=replace(me.info, local_epochs=None))
    if "noise-sigma" in node_config:
        sigma = node_config["noise-sigma"]
        if isinstance(sigma, bool | str) or not 0 <= sigma < float("inf"):
            raise ClientError(f"noise-sigma = {sigma!r}: must be 0 or more; mend --node-config")
        info = replace(me.info, noise_sigma=None)
        me = replace(me, noise_sigma=float(sigma), secret_noise=True, info=info)
    return me


@lru_cache(maxsize=4096)
def _simulated_client(
    data: DataConfig, seed: int, heterogeneity: HeterogeneityConfig, most_epochs: int, index: int
) -> ClientData:
    """Client `index` of N = data.num_clients; cached, since every round asks again."""
    splits, parts = load_splits(data, seed), _parts(data, seed)
    if isinstance(parts, PartitionError):
        raise parts
    mine = splits.train.take(parts[index])
    fraction, sigma = heterogeneity.straggler_fraction, heterogeneity.noise_sigma
    epochs = int(local_epochs(seed, data.num_clients, most_epochs, fraction)[index])
    noise = float(noise_levels(seed, data.num_clients, sigma)[index])
    histogram = np.bincount(mine.y.numpy(), minlength=splits.num_classes)
    info = ClientInfo(f"partition-{index}", len(mine), tuple(histogram.tolist()), epochs, noise)
    return ClientData(info, mine, epochs, noise)


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
