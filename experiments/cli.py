"""The `greedyfed` command."""

import errno
import logging
import os
import signal
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NoReturn

import click
import typer
from rich.console import Console

from common.config import ConfigError, RunConfig, Scalar
from common.errors import GreedyfedError, printable
from experiments.own import data
from experiments.paper import paper
from experiments.progress import RoundProgress
from experiments.screen import plain
from experiments.settings import check_data, read_settings, simulated
from experiments.sweep import sweep
from experiments.views import ledger, report, watch

log = logging.getLogger("greedyfed")
HELP = "Client selection by contribution for federated learning on Flower."
app = typer.Typer(help=HELP, add_completion=False, pretty_exceptions_enable=False)
Changes = Annotated[
    list[str] | None, typer.Option("-c", metavar="KEY=VALUE", help="Set a key; repeatable.")
]
ConfigFile = Annotated[Path | None, typer.Option(help="TOML file of keys.", readable=False)]
DataDir = Annotated[str | None, typer.Option(help="Same as -c data-dir=…")]


@app.command()
def run(
    change: Changes = None,
    config: ConfigFile = None,
    data_dir: DataDir = None,
    output_dir: Annotated[str | None, typer.Option(help="Same as -c output-dir=…")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted run, or one of fewer rounds.")
    ] = False,
    ray: Annotated[
        bool, typer.Option("--ray", help="Through `flwr run` and Ray, not in this process.")
    ] = False,
    superlink: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="On the clients of a SuperLink; paths are its."),
    ] = None,
    root_certificates: Annotated[
        Path | None, typer.Option(help="Certificate of the SuperLink's CA.", readable=False)
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="The SuperLink speaks plain text.")
    ] = False,
    results: Annotated[
        Path | None,
        typer.Option(
            help="Where the ServerApp's output-dir is seen from here, if elsewhere.",
            readable=False,
        ),
    ] = None,
) -> None:
    """Train one federation in this process. The last line printed is the run directory."""
    given = {"data-dir": data_dir, "output-dir": output_dir, "resume": resume or None}
    settings = read_settings(config, change, given)
    if superlink is not None:
        if ray:
            raise ConfigError("--ray is for a simulation, --superlink for real clients; give one")
        remote = _Remote(superlink, root_certificates, insecure, results)
        remote.check(settings)
        directory = (results or Path(settings.output_dir)) / settings.run_id
    else:
        if root_certificates or insecure or results:
            raise ConfigError(
                "--root-certificates, --insecure and --results are for a SuperLink; name it by "
                "--superlink, or leave them out"
            )
        settings = simulated(settings)
        directory = Path(settings.output_dir) / settings.run_id
    console = Console(stderr=True)
    with RoundProgress(console, settings.num_rounds) as progress:
        log.propagate, log.level = False, logging.INFO
        log.addHandler(_ProgressHandler(progress))
        try:
            if superlink is not None:
                remote.train(settings, directory, progress)
            elif ray:
                _train_with_ray(settings, progress)
            else:
                _train_here(settings, progress)
        except Stopped as stop:
            message = f"stopped; {directory} keeps the rounds so far: go on with --resume"
            console.print(plain(message), soft_wrap=True)
            raise typer.Exit(128 + stop.signal) from None
    from experiments.summary import summary_table

    _output().print(summary_table(directory))
    print(directory)


@app.command()
def status(
    run: Annotated[
        Path, typer.Argument(help="A run directory, or a folder of several.", readable=False)
    ] = Path("runs"),
) -> None:
    """How a run stands: its round, who answered, who failed and why; also while it goes."""
    from experiments.status import status as status_of

    _output().print(status_of(run))


def _output() -> Console:
    output = Console()
    if not output.is_terminal:
        output.width = 120  # a file has no width to keep to
    return output


@app.command()
def partition(
    out: Annotated[
        Path, typer.Option(help="Folder for client-<i>.npz and server.npz.", readable=False)
    ],
    dataset: Annotated[str | None, typer.Option(help="Same as -c dataset=…")] = None,
    num_clients: Annotated[int | None, typer.Option(help="Same as -c num-clients=…")] = None,
    change: Changes = None,
    config: ConfigFile = None,
    data_dir: DataDir = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the files of an earlier partition.")
    ] = False,
) -> None:
    """Write the examples of each simulated client, and the server's, as files for a deployment."""
    from experiments.partition_files import usage, write_partition

    given = {"dataset": dataset, "num-clients": num_clients, "data-dir": data_dir}
    settings = simulated(read_settings(config, change, given))
    check_data(settings)
    for path, count in write_partition(settings, out, overwrite=overwrite):
        print(f"{path}  {count} examples")
    print(usage(out))


app.command()(data)
app.command()(sweep)
app.command()(paper)
app.command()(report)
app.command()(ledger)
app.command()(watch)


def _train_here(config: RunConfig, progress: RoundProgress) -> None:
    from client_app.app import app as client_app
    from experiments.local_grid import run_in_process
    from server_app.app import app as server_app

    check_data(config)
    nodes: list[dict[str, Scalar]] = [{} for _ in range(config.data.num_clients)]
    run_in_process(server_app, client_app, config.to_flat(), nodes)


def _train_with_ray(config: RunConfig, progress: RoundProgress) -> None:
    from experiments.simulation import simulate
    from server_app.app import server_model
    from server_app.run_directory import RunDirectory

    check_data(config)
    server_model(config).initial_state()
    directory = RunDirectory(config)  # its errors come now, not after Ray's start
    directory.close()
    if directory.is_complete:
        progress.tell("this run is complete: nothing to do")
    else:
        _announce(config, directory.path)
        simulate(config, progress)


def _announce(config: RunConfig, directory: Path) -> None:
    """Say what the ServerApp will say of the run's beginning, where it runs in another process."""
    from server_app.algorithms import never_by_value
    from server_app.continuation import beginning, earlier_run, has_rounds

    if not has_rounds(directory) and (line := beginning(config, 0, earlier_run(config, directory))):
        log.info(line)
    if line := never_by_value(config, config.data.num_clients):
        log.warning(line)


@dataclass(frozen=True)
class _Remote:
    """A SuperLink whose clients train."""

    address: str
    ca_file: Path | None
    insecure: bool
    results: Path | None

    def check(self, config: RunConfig) -> None:
        """Raises ConfigError or SuperLinkError for what can be seen to be wrong from here."""
        from experiments.superlink import check_superlink

        if bool(self.ca_file) == self.insecure:
            raise ConfigError(
                f"--superlink {self.address}: needs one of --root-certificates FILE, for TLS, and "
                f"--insecure, for plain text; give {'either' if self.insecure else 'one of them'}"
            )
        check_superlink(self.address, self.ca_file)
        for key in ("output-dir", "data-dir"):
            path = str(config.to_flat()[key])
            if path and not Path(path).is_absolute() and ":" not in path:
                raise ConfigError(
                    f"{key} = {path!r}: the ServerApp works in a folder of its own; give an "
                    "absolute path of its machine"
                )
        if config.data.dataset != "own" and not config.data.num_clients:
            raise ConfigError(
                "num-clients = 0: part of the name of a run on a public data set; "
                "set it to the number of clients"
            )
        seen = self.results or Path(config.output_dir)
        if not seen.is_dir():
            raise ConfigError(
                f"{seen}: no such folder here; make it, or name by --results where the "
                "ServerApp's output-dir is seen from this machine"
            )

    def train(self, config: RunConfig, directory: Path, progress: RoundProgress) -> None:
        from experiments.flower import Flwr

        with suppress(GreedyfedError):  # the ServerApp meets it, too
            _announce(config, directory)
        with tempfile.TemporaryDirectory(prefix="greedyfed-") as home:
            ca_file = self.ca_file and self.ca_file.resolve()
            Flwr(Path(home), self.address, ca_file).train(config, directory, progress)


_OUTPUT_LOST = {errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}


class Stopped(BaseException):
    """A signal asks to stop: what was started must be ended, and what was learned saved."""

    def __init__(self, signal: int) -> None:
        self.signal = signal


def _stop(number: int, frame: object) -> NoReturn:
    raise Stopped(number)


class _ProgressHandler(logging.Handler):
    """Shows the round records and other messages of what runs in this process."""

    def __init__(self, progress: RoundProgress) -> None:
        super().__init__()
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        if hasattr(record, "round_record"):
            self._progress.show(record.round_record.to_json())
        else:
            self._progress.tell(record.getMessage())


def main(commands: typer.Typer = app) -> None:
    """Entry point: errors that the user can mend are printed without a traceback.

    Exit codes: 0 done, 1 the run failed, 2 it was not started as the request is wrong, 128 + n
    stopped by signal n.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    try:
        code = commands(standalone_mode=False) or 0
        sys.stdout.flush()
        sys.exit(code)
    except click.UsageError as error:  # an unknown option, a missing argument
        told = printable(" ".join(error.format_message().split())).rstrip(".")
        print(f"greedyfed: {told}; see --help", file=sys.stderr)
        sys.exit(error.exit_code)
    except GreedyfedError as error:
        for line in str(error).splitlines():
            print(f"greedyfed: {printable(line)}", file=sys.stderr)
        sys.exit(error.exit_code)
    except Stopped as stop:
        sys.exit(128 + stop.signal)
    except OSError as error:
        if error.filename is not None or error.errno not in _OUTPUT_LOST:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is still to be written
        if error.errno == errno.EPIPE:  # as of `| head`: its reader has had enough
            sys.exit(128 + signal.SIGPIPE)
        print(
            f"greedyfed: output cannot be written: {error.strerror}; give it another place",
            file=sys.stderr,
        )
        sys.exit(1)


if __name__ == "__main__":
    main()
