"""Kill a ServerApp between its clients' last answer and the record of the round.

kill_in_aggregation.py RUN_DIRECTORY SUPERLINK, beside the ServerApp, in its container too: uses the
standard library only. Prints the round.
"""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path


def lines(path: Path) -> list[dict]:
    found = []
    if path.exists():
        for line in path.read_text().splitlines():
            with suppress(json.JSONDecodeError):
                found.append(json.loads(line))
    return found


def aggregating(run: Path) -> int:
    """The round, from the second on, whose clients were all accepted and which is not recorded."""
    events = lines(run / "events.jsonl")
    number = events[-1]["round"] if events else 0
    now = [e for e in events if e["round"] == number]
    asked = {c for e in now if e["event"] == "asked" for c in e["clients"]}
    accepted = {e["client"] for e in now if e["event"] == "accepted"}
    recorded = len(lines(run / "history.jsonl"))
    return number if asked == accepted and recorded == number - 1 >= 1 else 0


def serverapp(superlink: str) -> int:
    """The process of the ServerApp, or 0."""
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            command = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            program = [Path(word).name for word in command[:2]]
            if "flwr-serverapp" in program and superlink in command:
                return int(process.name)
    return 0


def main(run: Path, superlink: str, seconds: float = 300.0) -> None:
    deadline, pid = time.monotonic() + seconds, 0
    while time.monotonic() < deadline:
        if not pid or not Path(f"/proc/{pid}").exists():
            pid = serverapp(superlink)
            time.sleep(0.1)
        elif aggregating(run):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.02)
            if number := aggregating(run):
                os.kill(pid, signal.SIGKILL)
                print(number)
                return
            os.kill(pid, signal.SIGCONT)  # too late: it was recorded meanwhile
        time.sleep(0.0005)
    sys.exit("the ServerApp was never seen in an aggregation")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
