"""Groups of validation examples in which clients are valued apart."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from common.config import ValuationConfig
from common.datasets import DataError, Dataset
from common.seeding import Stream, rng_for

#: (examples, number of classes) -> members (n, G) float64, a 1 in the column of its group.
Grouping = Callable[[Dataset, int], Tensor]
#: A column with more different values is a quantity, not a group.
MAX_GROUPS = 100


def ungrouped(data: Dataset, num_classes: int) -> Tensor:
    """No groups, (n, 0)."""
    return torch.zeros((len(data), 0), dtype=torch.float64)


def by_class(data: Dataset, num_classes: int) -> Tensor:
    """A group for each class, whether it has examples or not."""
    return one_hot(data.y, num_classes).double()


def by_column(data: Dataset, num_classes: int, *, column: int) -> Tensor:
    """A group for each value of a column of the inputs (n, columns), in the values' order.

    Raises:
        DataError: inputs without columns, no such column, or one with very many values.
    """
    key, shape = f"valuation-group-column = {column}", tuple(data.x.shape[1:])
    if len(shape) != 1 or column >= shape[0]:
        raise DataError(
            f"{key}: the inputs have shape {shape}; give a column of a table, counted from 0 "
            "without its label, or set valuation-groups = 'classes'"
        )
    values, group = np.unique(data.x[:, column].cpu().numpy(), return_inverse=True)
    if len(values) > MAX_GROUPS:
        raise DataError(
            f"{key}: has {len(values)} different values, at most {MAX_GROUPS} make groups; "
            "give another column, or set valuation-groups = 'clusters'"
        )
    return one_hot(torch.from_numpy(group), len(values)).double()


def by_cluster(data: Dataset, num_classes: int, *, clusters: int, seed: int) -> Tensor:
    """Groups of similar inputs, by k-means on the inputs as they are."""
    from sklearn.cluster import KMeans

    state = int(rng_for(seed, Stream.GROUPS).integers(2**31))
    inputs = data.x.flatten(1).cpu().numpy()
    found = KMeans(min(clusters, len(data)), n_init=4, random_state=state).fit_predict(inputs)
    return one_hot(torch.from_numpy(found).long(), clusters).double()


def grouping_from(config: ValuationConfig, seed: int) -> Grouping | None:
    """The groups that a configuration names; None: all examples are one."""
    if config.valuation_groups == "column":
        return partial(by_column, column=config.valuation_group_column)
    if config.valuation_groups == "clusters":
        return partial(by_cluster, clusters=config.valuation_clusters, seed=seed)
    return by_class if config.valuation_groups == "classes" else None
