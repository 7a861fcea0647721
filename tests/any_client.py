"""Runs in which a client's honest replies are changed at will before they are sent."""

from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client_app import app as real
from common.config import RunConfig
from tests.federation import run

Change = Callable[[RecordDict], object]


def nothing(content: RecordDict) -> None:
    """An honest reply."""


def run_with(
    config: RunConfig,
    query: Change = nothing,
    train: Change = nothing,
    evaluate: Change = nothing,
    node: int | None = None,
) -> Path:
    """Run a configuration whose replies are changed, of all clients or of one partition."""
    app = ClientApp(mods=[real.always_reply])

    def honest_but(handler: Callable[[Message, Context], Message], change: Change):
        def answer(message: Message, context: Context) -> Message:
            reply = handler(message, context)
            if node in (None, context.node_config["partition-id"]):
                change(reply.content)
            return reply

        return answer

    app.query()(honest_but(real.query, query))
    app.train()(honest_but(real.train, train))
    app.evaluate()(honest_but(real.local_loss, evaluate))
    return run(config, client_app=app)
