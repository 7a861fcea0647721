"""Runs in which clients' honest replies are changed at will, and all that reads them."""

from collections.abc import Callable
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from rich.console import Console

import greedyfed
from client_app import app as real
from common.config import RunConfig
from experiments.ledger import ledger_of
from experiments.ledger_formats import FORMATS
from experiments.report import data_text
from experiments.run_data import read_run
from experiments.status import status
from experiments.summary import summary_table
from experiments.terminal import view
from experiments.watch import follow
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


def read_by_all(path: Path) -> list[str]:
    """What every reader says of a run, as text."""
    run = read_run(path)
    data_text([run])  # before `watch`, which would say of any error that the run is none
    console = Console(width=200)
    with console.capture() as shown:
        console.print(status(path), status(path.parent), view(follow(path)), summary_table(path))
    frames = greedyfed.load_run(path)
    assert list(frames.clients.index) == [a.client for a in ledger_of(run).clients]
    told = [write(ledger_of(run)) for write in FORMATS.values()]
    return [shown.get(), *told]
