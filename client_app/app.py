"""The ClientApp: says who it is, and trains on its own data."""

import logging
from functools import lru_cache

import numpy as np
import torch
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from torch import nn

from client_app.data import ClientData, ClientError, my_data
from common.chain import chain_of
from common.config import RunConfig, Scalar
from common.evaluation import evaluate
from common.models import build_model, placed
from common.params import ParamSpec
from common.seeding import Stream, client_key, rng_for
from common.task import Task, decode_task
from common.training import add_parameter_noise, clip_update, local_sgd
from common.trial import ROWS
from common.try_out import try_out
from common.wire import (
    ClientUpdate,
    decode_params,
    decode_round,
    encode_info,
    encode_loss,
    encode_update,
    params_bytes,
)

log = logging.getLogger("greedyfed.client")
CLIENT_RAISED = 2  # Flower's error code for an exception inside a ClientApp


def always_reply(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Answer with an error reply when the handler raises or returns something else.

    Flower words an exception differently in each runtime, and a handler that returns no reply
    blocks its SuperNode for ever.
    """
    try:
        reply = call_next(message, context)
        if reply.metadata.reply_to_message_id == message.metadata.message_id:
            return reply
        raise ClientError("the handler returned a message that is not a reply")
    except Exception as error:  # every fault must reach the server as an answer
        log.debug("client failed", exc_info=True)
        return Message(Error(CLIENT_RAISED, f"{type(error).__name__}: {error}"), reply_to=message)


app = ClientApp(mods=[always_reply])


@app.query()
def query(message: Message, context: Context) -> Message:
    """Who am I: client id, number of examples, and in a simulation the ground truth.

    Whoever cannot train the server's network says so here, before a round counts on it.
    """
    torch.set_num_threads(1)
    task = decode_task(message.content)
    config, me = _setup(context, task)
    _try_out(config, task, me, str(context.node_config.get("data-path", "")))
    return Message(encode_info(me.info), reply_to=message)


@app.evaluate()
def local_loss(message: Message, context: Context) -> Message:
    """The global model's loss on this client's own data."""
    torch.set_num_threads(1)
    task = decode_task(message.content)
    config, me = _setup(context, task)
    model = _received(config, task, params_bytes(message.content))
    loss = evaluate(model, me.data.to(config.device)).loss
    return Message(encode_loss(loss), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Local SGD from the global model, then this client's noise."""
    torch.set_num_threads(1)  # small models are slower on more, and their sums would differ
    task = decode_task(message.content)
    config, me = _setup(context, task)
    model, spec = _model(config, task)
    plain = spec.complete and chain_of(model)[0]
    if not plain:  # it may remember what no vector holds
        model = _build(config, task)
    params = decode_params(params_bytes(message.content), spec.size)
    spec.load(model, params)
    server_round = decode_round(message.content)
    client = client_key(me.info.client_id)
    rng = rng_for(config.seed, Stream.LOCAL_SGD, server_round, client)
    data, epochs = me.data.to(config.device), me.local_epochs
    local_sgd(model, data, config.training, epochs, rng, me.batch_size)
    if task.network and not plain:
        task.network.check_trained(model, _model(config, task)[0], spec)
    trained = clip_update(spec.flatten(model), params, config.heterogeneity.clip_norm)
    if me.noise_sigma:
        known = rng_for(config.seed, Stream.NOISE, server_round, client)
        noise_rng = np.random.default_rng() if me.secret_noise else known
        trained = add_parameter_noise(trained, me.noise_sigma, noise_rng)
        if task.network and spec.mirror(trained, task.network.positive):
            _say_once(
                "noise made numbers negative that must be positive "
                f"({', '.join(task.network.positive):.100}); their sign is turned"
            )
    update = ClientUpdate(me.info.client_id, trained, len(me.data), me.noise_sigma)
    return Message(encode_update(update), reply_to=message)


@lru_cache(maxsize=64)
def _say_once(text: str) -> None:
    """By this process."""
    log.warning("%s", text)


def _setup(context: Context, task: Task) -> tuple[RunConfig, ClientData]:
    count = context.node_config.get("num-partitions", 0)
    config = _config(tuple((context.run_config | {"num-clients": count}).items()))
    return config, my_data(context.node_config, config, task, context.node_id)


@lru_cache(maxsize=4)
def _config(flat: tuple[tuple[str, Scalar], ...]) -> RunConfig:
    return RunConfig.from_flat(dict(flat))


#: What this process has tried out: a configuration and a task with the data of one path, or with
#: one, or several, examples of a public data set.
_tried = set[tuple[RunConfig, Task, str]]()


def _try_out(config: RunConfig, task: Task, me: ClientData, path: str) -> None:
    """Raises ModelError where the network cannot be trained on this client's data."""
    key = config, task, path or ("one" if len(me.data) == 1 else "several")
    if key not in _tried:
        _model(config, task)
        few = me.data.take(np.arange(min(ROWS, len(me.data)))).to(config.device)
        try_out(lambda: _build(config, task), few, task.num_classes, config.training.model)
        _tried.add(key)


def _build(config: RunConfig, task: Task) -> nn.Module:
    name, seed, whole = config.training.model, config.seed, task.inputs == "whole"
    model = build_model(name, task.input_shape, task.num_classes, seed, whole)
    return placed(model, config.device)


@lru_cache(maxsize=2)
def _model(config: RunConfig, task: Task) -> tuple[nn.Module, ParamSpec]:
    """A network, and what of it travels. Raises ModelError where it is not the server's."""
    model, network = _build(config, task), task.network
    spec = ParamSpec.of(model, network.constant if network else ())
    if network:
        network.check(model, spec, config.training.model)
    return model, spec


@lru_cache(maxsize=1)
def _received(config: RunConfig, task: Task, sent: bytes) -> nn.Module:
    """The model that was sent, which a process may be asked about for many clients in turn."""
    model, spec = _second_model(config, task)
    spec.load(model, decode_params(sent, spec.size))
    return model


@lru_cache(maxsize=1)
def _second_model(config: RunConfig, task: Task) -> tuple[nn.Module, ParamSpec]:
    """One that is not trained."""
    return _build(config, task), _model(config, task)[1]
