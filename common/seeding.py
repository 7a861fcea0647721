"""One random generator per purpose, derived from the run's seed.

No part of the system draws from a global generator, so there is no generator state to save: a run
that resumes at round t draws what an unbroken run draws at round t, on whatever machine.
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """What a generator is for; the ids that follow it in `rng_for` are given in parentheses."""

    PARTITION = 0  # ()
    MODEL = 1  # ()
    SELECT = 2  # (round)
    VALUE = 3  # (round)
    LOCAL_SGD = 4  # (round, client)
    STRAGGLER = 5  # ()
    NOISE = 6  # (round, client)
    NOISE_LEVEL = 7  # ()
    SPLIT = 8  # (): validation and test halves of the held-out examples
    SYNTHETIC = 9  # (client)
    GROUPS = 10  # (): clusters of validation examples


def rng_for(seed: int, stream: Stream, *ids: int) -> np.random.Generator:
    """The generator of one stream; streams with different ids are independent.

    `SeedSequence` mixes the whole key, whereas sums such as seed + client collide between runs.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(int(stream), *ids)))


def client_key(client_id: str) -> int:
    """A stable 64-bit number for a client's name, to be used as an id in `rng_for`."""
    return int.from_bytes(hashlib.blake2b(client_id.encode(), digest_size=8).digest(), "big")


@contextmanager
def global_generators(seed: int) -> Iterator[None]:
    """Seed Python's and numpy's global generators, from which user code may draw, for a block."""
    ours, theirs = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(ours)
        np.random.set_state(theirs)
