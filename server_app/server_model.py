"""The network with the server's own data: losses of parameter vectors."""

import copy
import logging
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from common.datasets import Dataset, inputs_of
from common.errors import one_line
from common.evaluation import Evaluation, evaluate
from common.models import ModelError, placed
from common.params import ParamSpec, Vector
from common.stack import ModelStack
from common.task import Task
from common.trial import ROWS, Build
from common.try_out import try_out
from server_app.groups import Grouping, ungrouped
from server_app.state import ClientStats, ServerState
from server_app.valuation import Floats

log = logging.getLogger("greedyfed")
#: Activations of a layer, in floats, that are computed at a time: 4 MiB, which with what the layer
#: is given stay in a core's caches. A GPU has many more cores to keep busy.
_AT_A_TIME = {"cpu": 2**20, "cuda": 2**27}
_MIN_ROWS, _MAX_ROWS = 4, 1000
#: Examples of the part on which a game is nearly the same, and how many times these there must be
#: for it to be worth a game of its own.
PART, MIN_PARTS = 500, 4


def cores() -> int:
    """Cores for this process: OMP_NUM_THREADS where it is set, as in the processes of a sweep."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return int(os.environ.get("OMP_NUM_THREADS") or allowed or 1)


def _copied(model: nn.Module) -> nn.Module:
    """Raises ModelError for a network that cannot be copied, as with the old weight_norm."""
    if any(is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        raise ModelError("model: has lazy layers without shapes yet; call it on some examples")
    try:
        return copy.deepcopy(model)
    except Exception as error:  # the user's code may raise anything
        raise ModelError(
            f"model: cannot be copied: {one_line(error):.200}; give a function that builds it"
        ) from error


class ServerModel:
    """The model with the server's own data: losses of parameter vectors (D,).

    The network is tried out on validation examples (`common.try_out`). Where it is a chain of known
    layers, the models of many coalitions are evaluated as one (`common.stack`).

    Args:
        model: the network, or a function that builds it anew, with the same numbers each time.
            A network is copied; one that cannot be needs the function.
        valuation_examples: validation examples on which coalitions are evaluated, a fixed part in
            which the classes have the shares that they have in the whole; 0: all.
        memory: MiB that the models and activations of many coalitions may take at a time.
        grouping: the groups of validation examples whose losses are told apart; None: none are.
        name: the network's, for messages.
        elsewhere: builds the network with other random numbers, as whoever loads a saved one does.

    Raises:
        ModelError: the network cannot be averaged, saved or valued rightly.
    """

    def __init__(
        self,
        model: nn.Module | Build,
        val: Dataset,
        test: Dataset,
        num_classes: int,
        device: str = "cpu",
        valuation_examples: int = 0,
        memory: int = 256,
        grouping: Grouping | None = None,
        name: str = "given",
        elsewhere: Build | None = None,
    ) -> None:
        make = partial(_copied, model) if isinstance(model, nn.Module) else model
        few = val.take(np.arange(ROWS) % len(val)).to(device)
        traits, notes = try_out(
            lambda: placed(make(), device),
            few,
            num_classes,
            name,
            (lambda: placed(elsewhere(), device)) if elsewhere else None,
        )
        self.model = placed(make(), device)
        self.task = Task(tuple(val.x.shape[1:]), num_classes, inputs_of(val.x), network=traits)
        self.spec = ParamSpec.of(self.model, traits.constant)
        self.floats = memory * 2**18  # of 4 bytes, that may be taken at a time
        self.stack = ModelStack(self.model, self.spec, few.x, traits.positive)
        if not self.stack.grouped:
            notes.append(
                f"model = {name!r}: coalitions are evaluated one after the other, as "
                f"{self.stack.why_not}"
            )
        for note in notes:
            log.info("%s", note)
        order = torch.preserve_format
        # Convolutions are twice as fast (docs/performance.md); a network of one's own may call
        # view(), which this order does not take.
        convolves = any(isinstance(m, nn.Conv2d) for m in self.model.modules())
        if self.stack.grouped and convolves and val.x.dim() == 4:
            order = torch.channels_last
            self.model.to(memory_format=order)
        self.val, self._test = val.to(device, order), test.to(device, order)
        members = (grouping or ungrouped)(val, num_classes)  # (n, G)
        #: The share of each group in the validation split, (G,).
        self.group_shares: Floats = members.mean(dim=0).numpy()
        # What an example counts in its group's loss, so that all losses are means over examples.
        members = members / members.mean(dim=0).clamp(min=1 / len(val))
        self.valued_on, self.members, n = self.val, members.to(device), len(val)
        if 0 < valuation_examples < n:
            n = valuation_examples
            self.valued_on = val.stratified(n).to(device, order)
            self.members = members[val.stratum(n)].to(device)
        large = n >= MIN_PARTS * PART
        self.part = val.stratified(PART).to(device, order) if large else None
        self.members_of_part = members[val.stratum(PART if large else 0)].to(device)

    def without_groups(self) -> None:
        """Tell no groups apart from now on."""
        self.group_shares = self.group_shares[:0]
        self.members, self.members_of_part = self.members[:, :0], self.members_of_part[:, :0]

    def initial_state(self) -> ServerState:
        """Before the first round: the network as it was given, no clients.

        Raises:
            ModelError: a network without a finite loss.
        """
        params = self.spec.flatten(self.model)
        loss = self.val_loss(params)
        if not np.isfinite(loss):
            raise ModelError(
                f"the initial model's validation loss is {loss}; mend the model's factory"
            )
        by_group = -self.utility(params, self.valued_on, self.members)[1:]
        return ServerState(0, params, ClientStats.of_groups(len(by_group)), loss, by_group)

    def val_loss(self, params: Vector) -> float:
        """Mean cross-entropy on the validation split, in nats."""
        return self.validate(params).loss

    def validate(self, params: Vector) -> Evaluation:
        """Loss and accuracy on the validation split, which values and hyper-parameters rest on."""
        return self.evaluate(params, self.val)

    def utility(self, params: Vector, data: Dataset, members: Tensor) -> Floats:
        """−(mean cross-entropy in nats) of some examples, and in each group, (1 + G,)."""
        found = self.evaluate(params, data, members)
        return -np.array([found.loss, *found.by_group])

    def evaluate(self, params: Vector, data: Dataset, members: Tensor | None = None) -> Evaluation:
        """The network itself with these parameters, on some examples."""
        self.spec.load(self.model, params)
        return evaluate(self.model, data, self.rows(1), members)

    def test(self, params: Vector) -> Evaluation:
        """Loss and accuracy on the test split, which no decision of the server uses."""
        return self.evaluate(params, self._test)

    def rows(self, count: int) -> int:
        """Examples for which to compute the activations of `count` models at a time."""
        fit = self._activations // (self.stack.width * count)
        return max(_MIN_ROWS, min(_MAX_ROWS, fit))

    @property
    def block(self) -> int:
        """Models to evaluate at a time: they fit in memory, and `rows` of them where it should."""
        fit = self.floats // (2 * self.spec.size)
        if self.stack.grouped:
            fit = min(fit, self._activations // (_MIN_ROWS * self.stack.width))
        return max(1, fit)

    def each(
        self, work: Callable[[int], tuple[Tensor, ...]], starts: Iterable[int]
    ) -> list[tuple[Tensor, ...]]:
        """`work` on each part of the examples, on all cores; in order, so that sums stay the same.

        Cores that share one product of a small model wait for one another longer than they
        compute; on parts of their own they do not.
        """
        with torch.inference_mode():
            return list(self._pool.map(torch.inference_mode()(work), starts))

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        many = self.val.x.device.type == "cpu"
        one_each = partial(torch.set_num_threads, 1)
        return ThreadPoolExecutor(cores() if many else 1, "valuation", one_each)

    @property
    def _activations(self) -> int:
        floats = _AT_A_TIME.get(self.val.x.device.type, _AT_A_TIME["cpu"])
        return min(floats, self.floats)
