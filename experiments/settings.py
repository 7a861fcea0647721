"""A run's configuration from TOML files and the command line, and a first look at its data."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from common.config import KEYS, ConfigError, RunConfig, Scalar

#: N of a simulation where num-clients is not given.
DEFAULT_CLIENTS = 10
#: Keys with paths; relative ones are the caller's, whatever folder Flower works in.
_PATHS = ("data-dir", "output-dir")


def check_data(config: RunConfig) -> None:
    """Load and split the data once, so that its errors come before any process is started."""
    from client_app.data import simulated_client
    from common.models import check_device
    from server_app.loggers import check_loggers

    check_device(config.device)
    check_loggers(config)
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
    keys = read_toml(file) if file else {}
    keys |= dict(parse_change(text) for text in changes or [])
    keys |= {key: value for key, value in given.items() if value is not None}
    return RunConfig.from_flat(keys)


def simulated(config: RunConfig) -> RunConfig:
    """The configuration for clients on this machine: relative paths made absolute, N given."""
    flat = config.to_flat()
    flat["num-clients"] = flat["num-clients"] or DEFAULT_CLIENTS
    paths = {k: _absolute(k, str(flat[k])) for k in _PATHS if flat[k]}
    return RunConfig.from_flat(flat | paths)


def _absolute(key: str, path: str) -> str:
    try:
        return str(Path(path).expanduser().resolve())
    except (OSError, RuntimeError) as error:  # no such user, a circle of links
        raise ConfigError(f"{key} = {path!r}: {error}; give another path") from error


def read_toml(path: Path) -> dict[str, Scalar]:
    """Keys of a TOML file; raises ConfigError naming the file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
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
