"""Many runs at once: by processes of this machine or of a Ray cluster, each at one run.

What the view shows is read from the run directories, so that it is the same however runs are
started: `summary.json` ends a run, and `.lock` names the process that is at it.
"""

import errno
import logging
import os
import signal
import socket
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from multiprocessing import current_process
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from common.config import ConfigError, RunConfig, Scalar
from common.errors import GreedyfedError, one_line
from experiments.screen import plain

#: A run that fails may have met a full disk or lost its process: it is tried once more.
TRIES = 2
LINE_SECONDS = 10.0  # without a terminal


class WorkerError(GreedyfedError):
    """The processes that runs are for cannot be had."""


@dataclass(frozen=True)
class Workers:
    """Where runs are computed: `jobs` processes here, or a Ray cluster ("local": one started here).

    On a cluster each node needs greedyfed, the data and the output folder under the same paths, and
    each of its CPUs takes a run, or `jobs` in all where that is more than 1.
    """

    jobs: int = 1
    ray: str | None = None

    @contextmanager
    def backend(self) -> Iterator[int]:
        """Makes joblib use these workers; gives joblib's n_jobs. Raises WorkerError."""
        from joblib import parallel_config

        if self.ray is None:
            with parallel_config("loky", inner_max_num_threads=1):
                yield self.jobs
            return
        import ray
        from ray.util.joblib import register_ray

        handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
        try:
            if self.ray == "local":
                ray.init(num_cpus=self.jobs, include_dashboard=False, **quiet)
            else:
                _connect(self.ray)  # Ray itself would try for minutes
                ray.init(self.ray, **quiet)
        except Exception as error:  # Ray raises whatever its parts raise
            raise WorkerError(
                f"--ray {self.ray}: no Ray cluster answers: {one_line(error)}; give its address "
                "as HOST:PORT, or `local`"
            ) from error
        for number, handler in handlers.items():  # Ray's own would exit with another status
            signal.signal(number, handler)
        register_ray()  # type: ignore[no-untyped-call]
        try:
            with parallel_config("ray"):
                yield self.jobs if self.jobs > 1 or self.ray == "local" else -1
        finally:
            ray.shutdown()


def _connect(address: str) -> None:
    """Raises OSError when nobody listens at an address with a port."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=5).close()


@dataclass(frozen=True)
class Outcome:
    """What became of some runs: how many were done already, and why any failed, by run_id."""

    done: int
    skipped: int
    failed: dict[str, str] = field(default_factory=dict)


def directory(config: RunConfig) -> Path:
    """Where a run lies."""
    return Path(config.output_dir) / config.run_id


def is_complete(config: RunConfig) -> bool:
    """Whether a run has ended: its summary is written last."""
    from server_app.run_directory import SUMMARY

    return os.path.exists(directory(config) / SUMMARY)  # Path's raises for a name too long


def complete_history(config: RunConfig) -> list[dict[str, Any]]:
    """The records of a complete run, one a round; raises RunDataError where it is not all there."""
    from experiments.run_data import read_run

    return list(read_run(directory(config)).rounds)


def _tell_other_versions(runs: list[RunConfig], console: Console) -> None:
    """Complete runs are not made again; those of another version of ours may have other numbers."""
    from server_app.run_directory import CONFIG
    from server_app.versions import recorded_versions

    mine, others = version("greedyfed"), Counter[str]()
    for run in runs:
        if (theirs := recorded_versions(directory(run) / CONFIG).get("greedyfed", mine)) != mine:
            others[theirs] += 1
    for theirs, count in others.items():
        told = (
            f"{count} of {len(runs)} complete runs are by greedyfed {theirs}, this is {mine}: "
            "numbers may differ; give another output-dir, or delete them to make them again"
        )
        console.print(plain(told))


def _check_output(folder: str) -> None:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
    except OSError as error:
        raise ConfigError(
            f"output-dir = {folder!r}: cannot be written: {error}; give a folder that can"
        ) from error


def run_all(runs: list[RunConfig], workers: Workers, console: Console) -> Outcome:
    """Run what is not complete; interrupted runs go on, and failed ones are tried once more.

    A signal stops all of it; every run has its checkpoint, so that the same call goes on with them.

    Raises:
        ConfigError: an output-dir is no folder that can be written; nothing was started.
        WorkerError: there are no workers.
    """
    from joblib import Parallel, delayed
    from joblib.externals.loky.process_executor import BrokenProcessPool

    todo = [run.with_values(resume=True) for run in runs if not is_complete(run)]
    for folder in sorted({run.output_dir for run in todo}):
        _check_output(folder)
    _tell_other_versions([run for run in runs if is_complete(run)], console)
    reasons = dict[str, str]()
    if not todo:
        console.print(f"all of {len(runs)} runs are complete")
        return Outcome(0, len(runs))
    # loky starts workers anew that have grown, as by a data set; that is no news to the user.
    warnings.filterwarnings("ignore", "A worker stopped while some jobs")
    left = todo
    with workers.backend() as n_jobs, SweepProgress(console, todo, len(runs) - len(todo)):
        for _ in range(TRIES):
            parallel = Parallel(n_jobs=n_jobs, batch_size=1)
            try:
                told = parallel(delayed(run_one)(run.to_flat()) for run in left)
                reasons = {run.run_id: why for run, why in zip(left, told, strict=True) if why}
            except BrokenProcessPool:
                why = "a process was killed; if memory is short, give fewer --jobs"
                reasons = {run.run_id: why for run in left if not is_complete(run)}
            left = [run for run in left if run.run_id in reasons]
            if not left:
                break
    return Outcome(len(todo) - len(left), len(runs) - len(todo), reasons)


def run_one(flat: dict[str, Scalar]) -> str | None:
    """One run in this process; returns why it failed."""
    from client_app.app import app as client_app
    from experiments.local_grid import run_in_process
    from server_app.app import app as server_app

    _obey_parent()
    log = logging.getLogger("greedyfed")
    if not log.handlers:  # else the ServerApp prints its rounds
        log.addHandler(logging.StreamHandler())  # which shows its warnings only
    nodes: list[dict[str, Scalar]] = [{} for _ in range(int(flat["num-clients"]))]
    try:
        run_in_process(server_app, client_app, flat, nodes)
    except Exception as error:  # whatever ends a run, the others go on
        kind = "" if isinstance(error, GreedyfedError) else f"{type(error).__name__}: "
        return kind + one_line(error)
    return None


def _obey_parent() -> None:
    """In joblib's processes: leave Ctrl-C to the parent, and end when it is gone."""
    if not current_process().name.startswith("Loky") or _obeys.is_set():
        return
    _obeys.set()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


_obeys = threading.Event()


class SweepProgress:
    """Runs done, running, failed and skipped, and the time left: a bar, or lines elsewhere."""

    def __init__(self, console: Console, todo: list[RunConfig], skipped: int) -> None:
        self._console, self._skipped = console, skipped
        self._open = {directory(run): run.num_rounds for run in todo}
        self._count, self._rounds = len(todo), sum(self._open.values())
        self._begun, self._before = time.time(), 0
        self._before = sum(_rounds_of(path) for path in self._open)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=self._rounds)

    def __enter__(self) -> Self:
        self._bar.start()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._show()
        self._bar.stop()
        if kind is not None and not issubclass(kind, Exception):
            self._console.print("stopped; the same command goes on with every run")

    def _watch(self) -> None:
        while not self._ended.wait(1.0 if self._console.is_terminal else LINE_SECONDS):
            self._show()

    def _show(self) -> None:
        from server_app.run_directory import SUMMARY

        for path in [path for path in self._open if (path / SUMMARY).exists()]:
            del self._open[path]
        running, failed = self._started()
        rounds = self._rounds - sum(self._open.values()) + sum(map(_rounds_of, self._open))
        text = (
            f"{self._count - len(self._open)} of {self._count} runs done, {running} running, "
            f"{failed} failed, {self._skipped} skipped"
        )
        if rounds > self._before and self._open:
            pace = (time.time() - self._begun) / (rounds - self._before)
            text += f", {_duration(pace * (self._rounds - rounds))} left"
        self._bar.update(self._task, completed=rounds, description=text)
        if not self._console.is_terminal:
            self._console.print(text, soft_wrap=True)

    def _started(self) -> tuple[int, int]:
        """Runs that a process is at, and runs that one has left since the start of the sweep."""
        running = failed = 0
        for path in self._open:
            with suppress(OSError):
                lock = (path / ".lock").stat()
                if lock.st_mtime >= self._begun:
                    running, failed = running + (lock.st_size > 0), failed + (lock.st_size == 0)
        return running, failed


def _rounds_of(path: Path) -> int:
    """Rounds that an unfinished run has behind it."""
    from server_app.run_directory import HISTORY

    try:
        return (path / HISTORY).read_bytes().count(b"\n")
    except OSError:
        return 0


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
