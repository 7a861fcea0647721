"""What the clients' updates may have revealed: (ε, δ), by Opacus's RDP accountant.

Each time that a client trains, it releases its clipped update with Gaussian noise. Whatever its
data are, two such updates differ by at most 2 · clip-norm in L2 norm, so that one release is the
Gaussian mechanism with noise multiplier σ / (2 · clip-norm), for the whole of a client's data
(local, client-level differential privacy), and the releases of a run compose (Mironov 2017).
Nothing else that a client of own data sends depends on its data but n_k, which counts as public.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Any
from warnings import catch_warnings

from common.config import ConfigError

#: A noise multiplier below it protects nothing, and its square is 0 to the accountant.
LEAST_NOISE = 1e-100


def check_accountant(delta: float) -> None:
    """Raises ConfigError where ε is wanted and there is no accountant."""
    if delta and find_spec("opacus") is None:
        raise ConfigError(
            f"privacy-delta = {delta}: needs Opacus, which is not installed; "
            "pip install 'greedyfed[privacy]', or set privacy-delta = 0"
        )


def releases(
    events: Iterable[Mapping[str, Any]], history: Iterable[Mapping[str, Any]]
) -> dict[str, Counter[float]]:
    """Client id -> how often it released an update with which noise σ, by the events of a run.

    Requests that only history knows, as when events were lost, count too. A request without an
    accepted answer counts as a release with the least noise that the client is known to add (0 if
    none is known): the update may have left the client.
    """
    asked, sigmas = Counter[str](), defaultdict[str, Counter[float]](Counter)
    for event in events:
        if event["event"] == "asked":
            asked.update(event["clients"])
        elif event["event"] == "accepted":
            sigmas[event["client"]][event["noise_sigma"]] += 1
    recorded = Counter(client for record in history for client in record["cohort"])
    for client, times in (asked | recorded).items():
        known = sigmas[client]
        if (unknown := times - known.total()) > 0:
            known[min(known, default=0.0)] += unknown
    return dict(sigmas)


def spent_epsilon(released: Mapping[float, int], clip_norm: float, delta: float) -> float:
    """ε at `delta` of Gaussian releases, noise σ -> how often; infinite if one had next to none."""
    if min(released, default=clip_norm) / (2 * clip_norm) < LEAST_NOISE:
        return float("inf")
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(s / (2 * clip_norm), 1.0, n) for s, n in released.items()]
    with catch_warnings(action="ignore"):  # a very large ε is a bound all the same
        return float(accountant.get_epsilon(delta))
