"""The `greedyfed` command."""

import logging
import signal
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from common.config import KEYS, ConfigError, RunConfig, Scalar
from common.errors import GreedyfedError
from experiments.progress import RoundProgress

HELP = "Client selection by contribution for federated learning on Flower."
app = typer.Typer(help=HELP, add_completion=False, pretty_exceptions_enable=False)
#: N of a simulation where num-clients is not given.
DEFAULT_CLIENTS = 10
#: Keys with paths; relative ones are the caller's, whatever folder Flower works in.
_PATHS = ("data-dir", "output-dir")


Changes = Annotated[
    list[str] | None, typer.Option("-c", metavar="KEY=VALUE", help="Set a key; repeatable.")
]
ConfigFile = Annotated[Path | None, typer.Option(help="TOML file of keys.")]
DataDir = Annotated[str | None, typer.Option(help="Same as -c data-dir=…")]


@app.command()
def run(
    change: Changes = None,
    config: ConfigFile = None,
    data_dir: DataDir = None,
    output_dir: Annotated[str | None, typer.Option(help="Same as -c output-dir=…")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    ray: Annotated[
        bool, typer.Option("--ray", help="Through `flwr run` and Ray, not in this process.")
    ] = False,
) -> None:
    """Train one federation in this process. The last line printed is the run directory."""
    given = {"data-dir": data_dir, "output-dir": output_dir, "resume": resume or None}
    settings = read_settings(config, change, given)
    directory = Path(settings.output_dir) / settings.run_id
    console = Console(stderr=True)
    with RoundProgress(console, settings.num_rounds) as progress:
        try:
            _train_with_ray(settings, progress) if ray else _train_here(settings, progress)
        except Stopped as stop:
            message = f"stopped; {directory} keeps the rounds so far: go on with --resume"
            console.print(message, soft_wrap=True)
            raise typer.Exit(128 + stop.signal) from None
    from experiments.summary import summary_table

    output = Console()
    if not output.is_terminal:
        output.width = 120  # a file has no width to keep to
    output.print(summary_table(directory))
    print(directory)


@app.command()
def partition(
    out: Annotated[Path, typer.Option(help="Folder for client-<i>.npz and server.npz.")],
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
    settings = read_settings(config, change, given)
    check_data(settings)
    for path, count in write_partition(settings, out, overwrite=overwrite):
        print(f"{path}  {count} examples")
    print(usage(out))


def _train_here(config: RunConfig, progress: RoundProgress) -> None:
    from client_app.app import app as client_app
    from experiments.local_grid import run_in_process
    from server_app.app import app as server_app

    check_data(config)
    server_log = logging.getLogger("greedyfed")
    server_log.propagate, server_log.level = False, logging.INFO
    server_log.addHandler(_ProgressHandler(progress))
    nodes: list[dict[str, Scalar]] = [{} for _ in range(config.data.num_clients)]
    run_in_process(server_app, client_app, config.to_flat(), nodes)


def _train_with_ray(config: RunConfig, progress: RoundProgress) -> None:
    from experiments.simulation import simulate
    from server_app.run_directory import RunDirectory

    check_data(config)
    directory = RunDirectory(config)  # its errors come now, not after Ray's start
    directory.close()
    if directory.is_complete:
        progress.say("this run is complete: nothing to do")
    else:
        simulate(config, progress)


class Stopped(BaseException):
    """A signal asks to stop: what was started must be ended, and what was learned saved."""

    def __init__(self, signal: int) -> None:
        self.signal = signal


def _stop(number: int, frame: object) -> NoReturn:
    raise Stopped(number)


class _ProgressHandler(logging.Handler):
    """Shows the ServerApp's round records and other messages."""

    def __init__(self, progress: RoundProgress) -> None:
        super().__init__()
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        if hasattr(record, "round_record"):
            self._progress.show(record.round_record.to_json())
        else:
            self._progress.say(record.getMessage())


def check_data(config: RunConfig) -> None:
    """Load and split the data once, so that its errors come before any process is started."""
    from client_app.data import simulated_client
    from common.models import check_device

    check_device(config.device)

    if config.data.dataset == "own":
        raise ConfigError(
            "dataset = 'own': here clients are simulated, and only a public data set can be split "
            "over them; set dataset to one, or run on Flower (README, Your own data)"
        )
    simulated_client(config, 0)


def read_settings(
    file: Path | None, changes: list[str] | None, given: Mapping[str, Scalar | None]
) -> RunConfig:
    """Keys of a TOML file, of `-c` and of named options, the later ones win; None is not given."""
    keys: dict[str, Scalar] = {"num-clients": DEFAULT_CLIENTS}
    keys |= read_toml(file) if file else {}
    keys |= dict(parse_change(text) for text in changes or [])
    keys |= {key: value for key, value in given.items() if value is not None}
    return absolute_paths(RunConfig.from_flat(keys))


def absolute_paths(config: RunConfig) -> RunConfig:
    """The configuration with the caller's relative paths made absolute."""
    flat = config.to_flat()
    paths = {k: str(Path(str(flat[k])).expanduser().resolve()) for k in _PATHS if flat[k]}
    return RunConfig.from_flat(flat | paths)


def read_toml(path: Path) -> dict[str, Scalar]:
    """Keys of a TOML file; raises ConfigError naming the file."""
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"--config {path}: {error}; give a TOML file of key = value lines"
        ) from error


def parse_change(text: str) -> tuple[str, Scalar]:
    """`key=value`, the value in TOML; text needs no quotes. Raises ConfigError."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not key:
        raise ConfigError(f"-c {text!r}: must be key=value; for example -c num-rounds=40")
    if key in KEYS and KEYS[key][1].annotation is str:
        return key, value.strip("\"'")
    try:
        parsed: Scalar = tomllib.loads(f"value = {value}")["value"]
        return key, parsed
    except tomllib.TOMLDecodeError:
        return key, value


def main(commands: typer.Typer = app) -> None:
    """Entry point: errors that the user can mend are printed without a traceback.

    Exit codes: 0 done, 1 the run failed, 2 it was not started as the request is wrong, 128 + n
    stopped by signal n.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    try:
        commands()
    except GreedyfedError as error:
        for line in str(error).splitlines():
            print(f"greedyfed: {line}", file=sys.stderr)
        sys.exit(error.exit_code)
    except Stopped as stop:
        sys.exit(128 + stop.signal)


if __name__ == "__main__":
    main()
