"""From the updates of a round to the new global model and the clients' values."""

from typing import NamedTuple

import numpy as np

from common.evaluation import Evaluation
from common.params import Vector
from common.wire import ClientUpdate
from server_app.round import Round
from server_app.server_model import ServerModel
from server_app.state import InGroups, ServerState
from server_app.utility import ModelAverageUtility, weighted_average
from server_app.valuation import (
    NOT_VALUED,
    CachedUtility,
    Floats,
    ShapleyEstimate,
    UtilityError,
    Valuation,
)

#: In place of a loss of 0, in nats.
TINY = 1e-12


class Aggregate(NamedTuple):
    """The average (D,), its loss and accuracy on the validation split, and the values.

    `leave_one_out` (M,) is by how many nats the average's loss is lower than without each client;
    NaN where the valuation had no need to know. `group_losses` (G,) are its losses in each group of
    the examples that values rest on, and `in_groups` what the clients are worth there; None where
    that was not asked.
    """

    params: Vector
    val: Evaluation
    estimate: ShapleyEstimate
    leave_one_out: Floats
    group_losses: Floats
    in_groups: InGroups | None


def aggregate(
    model: ServerModel,
    before: ServerState,
    updates: list[ClientUpdate],
    valuation: Valuation | None,
    rng: np.random.Generator,
    now: Round,
) -> Aggregate:
    """Average by n_k, then value (paper, Alg. 1, lines 10-11); `now` takes the time of both.

    Raises:
        UtilityError: a coalition's average has no finite validation loss.
    """
    with now.phase("average"):
        stacked = np.stack([u.params for u in updates])
        weights = np.array([u.num_examples for u in updates], np.float64)
        everyone = np.ones((1, len(updates)), dtype=bool)
        params: Vector = weighted_average(everyone, stacked, weights)[0]
    with now.phase("value"):
        average = ModelAverageUtility(model, before.params, stacked, weights)
        whole = model.valued_on is model.val  # then the losses of both models are known
        empty = -np.array([before.val_loss, *before.group_losses]) if whole else None
        utility = average.cached(empty)
        estimate = valuation(utility, len(updates), rng) if valuation else NOT_VALUED
        loss = -float(utility(everyone)[0])
        val = Evaluation(loss, average.accuracy) if whole else model.validate(params)
        if not np.isfinite(val.loss):
            raise UtilityError(f"the validation loss of the average is {val.loss}")
        without = utility.known(~np.eye(len(updates), dtype=bool))
        by_group = -utility.in_groups(everyone)[0]
        worth = _in_groups(utility, estimate)
        return Aggregate(params, val, estimate, -loss - without, by_group, worth)


def _in_groups(utility: CachedUtility, estimate: ShapleyEstimate) -> InGroups | None:
    """The values in each group, and what each update alone gains; zeros in a truncated round.

    Only `tmc` may have left out an update alone, which is evaluated here.
    """
    values = estimate.group_values
    if not values.size:
        return None
    if estimate.ended == "between":
        return InGroups(values, np.zeros_like(values))
    alone, nobody = np.eye(len(values), dtype=bool), np.zeros((1, len(values)), dtype=bool)
    before, after = -utility.in_groups(nobody), -utility.in_groups(alone)
    return InGroups(values, (before - after) / np.maximum(np.maximum(before, after), TINY))
