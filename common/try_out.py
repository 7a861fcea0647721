"""A network tried out on real examples before the first round.

A network is more than its list of layers. What of it cannot be averaged, saved or valued rightly is
refused here, in one line, by the server before a run begins, and by each client before it is asked
to train.
"""

import torch

from common import trial_of_state as state
from common.datasets import Dataset
from common.models import ModelError
from common.params import ParamSpec
from common.traits import Traits, differing, state_of
from common.trial import ROWS, Build, Trial

_OUTSIDE = "keep all state in its parameters and buffers, and draw from the global generators"


def try_out(
    build: Build, data: Dataset, num_classes: int, name: str, elsewhere: Build | None = None
) -> tuple[Traits, list[str]]:
    """Build, evaluate, train some steps, flatten, load, save and load again: all must agree.

    Args:
        build: makes the network anew, with the same numbers each time, where the data are.
        data: examples of the kind that it is for; the first few are used.
        name: the network's, for messages.
        elsewhere: makes it with other random numbers, as whoever loads a saved one does.

    Returns:
        What of it travels, and what a user should know of it, a line each.

    Raises:
        ModelError: what is wrong with it, and what to do.
    """
    trial = Trial(Dataset(data.x[:ROWS], data.y[:ROWS]), num_classes, name)
    try:
        with torch.random.fork_rng(devices=[]):
            return _tried_out(trial, build, elsewhere or build)
    except ModelError:
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise trial.wrong(
            error, "it must be evaluated, trained, saved and loaded as in plain PyTorch"
        ) from error


def _tried_out(trial: Trial, build: Build, elsewhere: Build) -> tuple[Traits, list[str]]:
    notes, trained, other = list[str](), build(), build()
    state.holds_tensors(trial, trained)
    state.are_two(trial, trained, other)
    new, first = state_of(trained), trial.evaluates(trained)
    if trial.are_probabilities(first):
        notes.append(
            f"model = {trial.name!r}: gives probabilities; the loss is that of scores, so leave "
            "its last softmax out"
        )
    state.is_seeded(trial, new, other)
    trial.scores(other)  # what it may keep of its first parameters, it keeps now
    if trial.trains(trained) > 1:
        notes.append(
            f"model = {trial.name!r}: gives several outputs in training; clients train on the first"
        )
    again = build()
    if not trial.close(trial.scores(again), first):
        raise trial.wrong("a new one scores otherwise once another was trained", _OUTSIDE)
    trial.trains(again)
    if moved := differing(state_of(trained), state_of(again), rtol=1e-3, atol=1e-4):
        raise trial.wrong(f"training makes other numbers of {moved[0]!r} each time", _OUTSIDE)
    constant = state.constant(trial, trained, new)
    spec = ParamSpec.of(trained, constant)
    fresh = build()
    state.travels(trial, trained, other, fresh, spec)
    state.is_saved(trial, other, fresh, "saved and loaded, it scores otherwise")
    state.is_saved(
        trial, other, elsewhere(), "saved, it scores otherwise in a network of other random numbers"
    )
    return Traits.of(new, spec, constant, state.positive(trial, other, spec)), notes
