"""What happens in a run, as it happens: events.jsonl, read with whatever a kill left of it."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

EVENTS = "events.jsonl"
#: Kinds of events, and what they tell beside time and round.
_ABOUT = {
    "asked": {"clients"},
    "answered": {"client"},
    "accepted": {"client", "noise_sigma"},
    "failed": {"client", "why"},
    "refused": {"node", "why"},
}


class _Event(BaseModel):
    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    event: str
    time: float = Field(ge=0, le=1e100)
    round: int = Field(ge=1)
    clients: list[str] = []
    client: str = ""
    node: str = ""
    why: str = ""
    noise_sigma: float = Field(0.0, ge=0, le=1e100)


def parsed(text: str) -> Any:
    """The value of a JSON text; raises ValueError too for what no run writes.

    That is deep nesting, and half of a surrogate pair, which is no text.
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    if "\\ud" in text.lower():  # half of a pair, perhaps
        json.dumps(value, ensure_ascii=False).encode()
    return value


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events of a run directory, oldest first; what is none is left out.

    A kill may cut a line short, and events are never needed to go on.
    """
    events = []
    with suppress(OSError):
        for line in (path / EVENTS).read_text("utf-8", errors="replace").splitlines():
            with suppress(ValueError, KeyError):
                event = parsed(line)
                told = _Event.model_validate(event)
                if _ABOUT[told.event] <= told.model_fields_set:
                    events.append(event)
    return events
