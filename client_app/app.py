"""The ClientApp: says who it is, and trains on its own data."""

import copy
import logging
from functools import lru_cache

import numpy as np
import torch
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable
from torch import nn

from client_app.data import ClientData, ClientError, my_data
from common.config import RunConfig, Scalar
from common.evaluation import evaluate
from common.models import build_model
from common.params import ParamSpec
from common.seeding import Stream, client_key, rng_for
from common.training import add_parameter_noise, clip_update, local_sgd
from common.wire import (
    ClientUpdate,
    Task,
    decode_params,
    decode_round,
    decode_task,
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
    """Who am I: client id, number of examples, and in a simulation the ground truth."""
    _, me = _setup(context, decode_task(message.content))
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
    if not spec.complete:  # integer buffers start anew each time
        model = copy.deepcopy(model)
    params = decode_params(params_bytes(message.content), spec.size)
    spec.load(model, params)
    server_round = decode_round(message.content)
    client = client_key(me.info.client_id)
    rng = rng_for(config.seed, Stream.LOCAL_SGD, server_round, client)
    data, epochs = me.data.to(config.device), me.local_epochs
    local_sgd(model, data, config.training, epochs, rng, me.batch_size)
    trained = clip_update(spec.flatten(model), params, config.heterogeneity.clip_norm)
    if me.noise_sigma:
        known = rng_for(config.seed, Stream.NOISE, server_round, client)
        noise_rng = np.random.default_rng() if me.secret_noise else known
        trained = add_parameter_noise(trained, me.noise_sigma, noise_rng)
    update = ClientUpdate(me.info.client_id, trained, len(me.data), me.noise_sigma)
    return Message(encode_update(update), reply_to=message)


def _setup(context: Context, task: Task) -> tuple[RunConfig, ClientData]:
    count = context.node_config.get("num-partitions", 0)
    config = _config(tuple((context.run_config | {"num-clients": count}).items()))
    return config, my_data(context.node_config, config, task, context.node_id)


@lru_cache(maxsize=4)
def _config(flat: tuple[tuple[str, Scalar], ...]) -> RunConfig:
    return RunConfig.from_flat(dict(flat))


@lru_cache(maxsize=2)
def _model(config: RunConfig, task: Task) -> tuple[nn.Module, ParamSpec]:
    name, seed = config.training.model, config.seed
    model = build_model(name, task.input_shape, task.num_classes, seed)
    return model.to(config.device), ParamSpec.of(model)


@lru_cache(maxsize=1)
def _received(config: RunConfig, task: Task, sent: bytes) -> nn.Module:
    """The model that was sent, which a process may be asked about for many clients in turn."""
    model, spec = _second_model(config, task)
    spec.load(model, decode_params(sent, spec.size))
    return model


@lru_cache(maxsize=1)
def _second_model(config: RunConfig, task: Task) -> tuple[nn.Module, ParamSpec]:
    """One that is not trained."""
    model, spec = _model(config, task)
    return copy.deepcopy(model), spec
