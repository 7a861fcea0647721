"""Combinations of keys that no run can satisfy."""

import json
from typing import TYPE_CHECKING
from unicodedata import category

if TYPE_CHECKING:
    from common.config import RunConfig

MAX_EXACT_COHORT = 14
#: Of Unicode: control characters, ends of lines and of paragraphs.
NO_TEXT = "Cc", "Zl", "Zp"
LOGGERS = "tensorboard", "mlflow"


def _least_evaluations(config: "RunConfig") -> int:
    """What the configured valuation needs before it can tell a value of each client."""
    m, chosen = config.selection.clients_per_round, config.valuation
    empty = int(chosen.valuation_examples > 0)  # else its utility is known from the last round
    everything: int = 2**m - 1 + empty
    name: str = chosen.valuation
    if name == "auto" and chosen.valuation_stop == "released":
        name = "gtg"
    if name == "none":
        return 0
    if name == "exact":
        return everything
    one_pass = 4 * m if name in ("auto", "kriging") else m * (m - 1) + 1
    return min(everything, one_pass + empty)


def impossible(config: "RunConfig") -> list[str]:
    """Combinations of keys that no run can satisfy, a line each."""
    n, m, found = config.data.num_clients, config.selection.clients_per_round, []
    for key, value in config.to_flat().items():
        if isinstance(value, str) and any(category(c) in NO_TEXT for c in value):
            found.append(
                f"{key} = {json.dumps(value)}: must be one line of text without control "
                "characters; correct it"
            )
    if n == 1:
        found.append("num-clients = 1: a federation has at least 2 clients; raise num-clients")
    if n and m > n:
        found.append(
            f"clients-per-round = {m}: must be at most num-clients = {n}; "
            "lower clients-per-round or raise num-clients"
        )
    if config.quorum > m:
        found.append(
            f"quorum = {config.quorum}: must be at most clients-per-round = {m}; "
            "lower quorum or raise clients-per-round"
        )
    if n and m <= n < m + config.spare_clients:
        found.append(
            f"spare-clients = {config.spare_clients}: together with clients-per-round = {m} must "
            f"be at most num-clients = {n}; lower one of them"
        )
    if unknown := [name for name in config.logger_names if name not in LOGGERS]:
        found.append(
            f"loggers = {config.loggers!r}: {unknown[0]!r} is none of {', '.join(LOGGERS)}; "
            "name one of them, or both with a comma between"
        )
    algorithm = config.selection.algorithm
    by_value = ("greedyfed", "greedyfed-classes", "ucb", "sfedavg")
    if algorithm in by_value and config.valuation.valuation == "none":
        found.append(
            f"valuation = 'none': algorithm = {algorithm!r} selects by value; "
            "set valuation = 'auto' or algorithm = 'fedavg'"
        )
    if config.valuation.valuation == "exact" and m > MAX_EXACT_COHORT:
        found.append(
            f"valuation = 'exact': needs 2^M evaluations a round, so clients-per-round = {m} "
            f"must be at most {MAX_EXACT_COHORT}; set valuation = 'auto'"
        )
    least, limit = _least_evaluations(config), config.valuation.valuation_max_evaluations
    if limit and limit < least:
        found.append(
            f"valuation-max-evaluations = {limit}: a value for each of clients-per-round = {m} "
            f"clients needs {least}; raise it, or set 0 for no limit"
        )
    if algorithm == "fedprox" and not config.training.proximal_mu:
        found.append(
            "proximal-mu = 0.0: algorithm = 'fedprox' needs a proximal term; "
            "set proximal-mu, for example to 0.1, or algorithm = 'fedavg'"
        )
    if algorithm == "power-of-choice" and config.heterogeneity.privacy_delta:
        found.append(
            "algorithm = 'power-of-choice': asks clients for losses, which get no noise, so "
            "that no ε holds; set privacy-delta = 0, or another algorithm"
        )
    if algorithm == "centralised" and config.data.dataset == "own":
        found.append(
            "algorithm = 'centralised': pools the clients' examples, which dataset = 'own' "
            "never leaves to others; set a public data set"
        )
    if config.heterogeneity.privacy_delta and not config.heterogeneity.clip_norm:
        found.append(
            f"privacy-delta = {config.heterogeneity.privacy_delta}: without a limit on the "
            "updates noise bounds nothing; set clip-norm, or privacy-delta = 0"
        )
    if config.data.dataset in ("mnist", "fmnist", "cifar10") and not config.data.data_dir:
        found.append(
            f"data-dir = '': dataset = {config.data.dataset!r} is read from files; set data-dir "
            "to their folder (with download = true they are fetched into it)"
        )
    if config.data.dataset == "own" and not config.data.data_dir:
        found.append(
            "data-dir = '': dataset = 'own' is validated on the server's own data; set "
            "data-dir to its .npz, .csv or .parquet file, folder or package.module:function"
        )
    return found
