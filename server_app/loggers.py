"""A run's rounds in TensorBoard and MLflow, from the records that history.jsonl has.

The run directory stays all that a run rests on. Each logger works in a thread of its own, so that
one that is slow, or does not answer, holds up no round; a failure costs a warning. What a logger
lacks it gets from history.jsonl: when it works again, or when the run is resumed, also after its
end.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from common.config import ConfigError, RunConfig
from common.errors import one_line
from server_app.events import read_events
from server_app.run_directory import read_history
from server_app.tracking import KINDS, Logger

log = logging.getLogger("greedyfed")
#: Seconds until a logger that failed is tried again.
RETRY_SECONDS = 60.0
#: Seconds that the end of a run waits for its loggers; that of a run stopped by a signal, a tenth.
END_SECONDS = 60.0


def check_loggers(config: RunConfig) -> None:
    """Raises ConfigError where the library of a logger is missing."""
    for name in config.logger_names:
        if find_spec(name) is None:
            raise ConfigError(
                f"loggers = {config.loggers!r}: needs {name}, which is not installed; "
                f"pip install 'greedyfed[{name}]', or leave it out"
            )


class _Feed(threading.Thread):
    """Gives one logger the rounds, and what it lacks of those before."""

    def __init__(self, name: str, config: RunConfig, path: Path) -> None:
        super().__init__(name=name, daemon=True)
        self._config, self._path = config, path
        self._rounds = queue.SimpleQueue[tuple[Mapping[str, Any], float] | str]()
        self._logger: Logger | None = None
        self._values: dict[str, float] = {}  # as `scalars` has them, after round `_seen`
        self._seen = 0
        self._failed_at: float | None = None
        self.is_up_to_date = False

    def put(self, item: tuple[Mapping[str, Any], float] | str) -> None:
        """A record and its time, or how the run ended: FINISHED, FAILED or KILLED."""
        self._rounds.put(item)

    def run(self) -> None:
        self._attempt(self._catch_up)
        while not isinstance(item := self._rounds.get(), str):
            if self._logger:
                self._attempt(self._add, self._logger, *item)
            elif self._failed_at and time.monotonic() - self._failed_at > RETRY_SECONDS:
                self._attempt(self._catch_up)
        if not self._logger:
            self._attempt(self._catch_up)
        if self._logger:
            self._attempt(self._logger.close, item)
        self.is_up_to_date = self._logger is not None

    def _attempt(self, step: Callable[..., None], *arguments: Any) -> None:
        try:
            step(*arguments)
        except Exception as error:  # whatever a library raises, the run goes on
            if self._failed_at is None:
                why = one_line(error)
                if len(why) > 400:  # libraries wrap a reason in others
                    why = f"{why[:200]} … {why[-200:]}"
                log.warning("%s: %s; the run goes on without it", self.name, why)
            self._logger, self._failed_at = None, time.monotonic()

    def _catch_up(self) -> None:
        self._values, self._seen = {}, 0
        logger = KINDS[self.name](self._config, self._path)
        times = {event["round"]: event["time"] for event in read_events(self._path)}
        for record in read_history(self._path):
            self._add(logger, record, times.get(record["round"], time.time()))
        self._logger = logger

    def _add(self, logger: Logger, record: Mapping[str, Any], seconds: float) -> None:
        if record["round"] > self._seen:
            self._seen = record["round"]
            self._values |= record["cumulative"]
            if record["round"] > logger.last:
                logger.write(record, self._values, seconds)


class Loggers:
    """The loggers of a configuration, fed until the end of the block."""

    def __init__(self, config: RunConfig, path: Path) -> None:
        """Begin with what `path`, the run directory, has already."""
        self._run = path.name
        self._feeds = [_Feed(name, config, path) for name in config.logger_names]

    def __enter__(self) -> Self:
        for feed in self._feeds:
            feed.start()
        return self

    def add(self, record: Mapping[str, Any]) -> None:
        """Pass on a round that history.jsonl has now; returns at once."""
        for feed in self._feeds:
            feed.put((record, time.time()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        status, patience = "FINISHED", END_SECONDS
        if kind and issubclass(kind, Exception):
            status = "FAILED"
        elif kind:
            status, patience = "KILLED", END_SECONDS / 10
        for feed in self._feeds:
            feed.put(status)
        deadline = time.monotonic() + patience
        for feed in self._feeds:
            feed.join(max(0.0, deadline - time.monotonic()))
            if not feed.is_up_to_date:
                remedy = "`greedyfed run` with the same keys and --resume hands them over"
                log.warning("%s lacks rounds of %s; %s", feed.name, self._run, remedy)
