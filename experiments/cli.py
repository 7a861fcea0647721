"""The `greedyfed` command."""

import logging
import signal
import sys
import tomllib
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from common.config import KEYS, ConfigError, RunConfig, Scalar
from common.errors import GreedyfedError
from experiments.progress import RoundProgress

HELP = "Client selection by contribution for federated learning on Flower."
app = typer.Typer(help=HELP, add_completion=False, pretty_exceptions_enable=False)
#: N of `greedyfed run` where num-clients is not given.
DEFAULT_CLIENTS = 10
#: Keys with paths; relative ones are the caller's, whatever folder Flower works in.
_PATHS = ("data-dir", "output-dir")


@app.callback()
def _commands() -> None:
    """Makes `run` a subcommand although it is the only one."""


@app.command()
def run(
    change: Annotated[
        list[str] | None, typer.Option("-c", metavar="KEY=VALUE", help="Set a key; repeatable.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of keys.")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Same as -c data-dir=…")] = None,
    output_dir: Annotated[str | None, typer.Option(help="Same as -c output-dir=…")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    ray: Annotated[
        bool, typer.Option("--ray", help="Through `flwr run` and Ray, not in this process.")
    ] = False,
) -> None:
    """Train one federation in this process. The last line printed is the run directory."""
    keys: dict[str, Scalar] = {"num-clients": DEFAULT_CLIENTS}
    keys |= read_toml(config) if config else {}
    keys |= dict(parse_change(text) for text in change or [])
    keys |= {k: v for k, v in zip(_PATHS, (data_dir, output_dir), strict=True) if v is not None}
    if resume:
        keys["resume"] = True
    settings = absolute_paths(RunConfig.from_flat(keys))
    directory = Path(settings.output_dir) / settings.run_id
    console = Console(stderr=True)
    with RoundProgress(console, settings.num_rounds) as progress:
        try:
            _train_with_ray(settings, progress) if ray else _train_here(settings, progress)
        except KeyboardInterrupt:
            console.print(f"interrupted; {directory} keeps the rounds so far: go on with --resume")
            raise typer.Exit(130) from None
    from experiments.summary import summary_table

    Console().print(summary_table(directory))
    print(directory)


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
    RunDirectory(config).close()  # its errors come now, not after Ray's start
    simulate(config, progress)


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
    from client_app.data import my_data

    my_data({"partition-id": 0, "num-partitions": config.data.num_clients}, config)


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


def main() -> None:
    """Entry point: errors that the user can mend are printed without a traceback.

    Exit codes: 0 done, 1 the run failed, 2 it was not started as the request is wrong.
    """
    # Imported by name, since importing the modules would load torch for `--help`.
    failed = {"RoundError", "SimulationError"}
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    try:
        app()
    except GreedyfedError as error:
        for line in str(error).splitlines():
            print(f"greedyfed: {line}", file=sys.stderr)
        sys.exit(1 if type(error).__name__ in failed else 2)
    except OSError as error:
        print(f"greedyfed: {error}; what was saved before can be resumed", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
