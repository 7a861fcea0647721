"""What a person sees while a run goes: a bar on a terminal, lines elsewhere."""

import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from common.errors import printable
from experiments.screen import plain


class RoundProgress:
    """Shows round records as they come (the objects of history.jsonl)."""

    def __init__(self, console: Console, num_rounds: int) -> None:
        self._console, self._num_rounds = console, num_rounds
        self._last_line = 0.0
        self._bar = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(bar_width=20),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=num_rounds)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """What is being waited for before the first round."""
        self._bar.update(self._task, description=printable(text))
        if not self._console.is_terminal:
            self._console.print(plain(text), soft_wrap=True)

    def tell(self, text: str) -> None:
        """What is to stay on the screen."""
        self._console.print(text, soft_wrap=True, markup=False, highlight=False)

    def show(self, record: dict[str, Any]) -> None:
        """A round has ended. Without a terminal: a line a second, and the last one."""
        cohort = record["cohort"]
        names = " ".join(cohort[:3]) + (f" +{len(cohort) - 3}" if len(cohort) > 3 else "")
        failed = f"  {len(record['failures'])} failed" if record["failures"] else ""
        text = (
            f"{printable(names)}  validation loss {record['val_loss']:.4f}  "
            f"test accuracy {record['test_accuracy']:.2%}{failed}"
        )
        self._bar.update(self._task, completed=record["round"], description=text)
        due = time.monotonic() - self._last_line >= 1
        if not self._console.is_terminal and (due or record["round"] == self._num_rounds):
            line = f"round {record['round']}/{self._num_rounds}  {text}"
            self._console.print(plain(line), soft_wrap=True)
            self._last_line = time.monotonic()
