"""What a round costs in a deployment, by phase: greedyfed's share, and the framework's beside it.

    python -m benchmarks.deploy [--quick] [--check]

A federation of processes on loopback (TLS, registered keys), three clients with .npz files of
digits of their own, all of them in every round. Three kinds of rounds take turns in one run, in
blocks: Flower's FedAvg of an empty ClientApp, of an empty one that imports torch, and greedyfed's.

Clocks in the processes of server and clients cut each round, from the end of the one before to its
own, into phases without gaps. Of the clients the one that finished last is shown, as the round
waits for it. Our share is all that greedyfed adds to Flower, torch and training:

- on the client: the import of our modules, reading and checking its data, building the model, what
  the first training in a process takes longer than the second, and the rest from the request's
  arrival to the reply, such as the configuration, decoding and encoding;
- on the server: everything but waiting for the clients, and half of the last pause of our receive
  loop, which is how long an answer waits for it on average.

Not ours are starting a process, importing torch, training, and what carries the messages; where the
server fetches a reply that its SuperNode is still sending, Flower tries again after 1 s. The table
holds medians over rounds, which need not add up, the smallest and the largest.

A second table: images are decoded by the first process that reads them, not by later ones.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from PIL import Image
from rich.console import Console
from rich.table import Table

from benchmarks.deploy_probe import BLOCK, GREEDYFED, KINDS, LOG
from common.config import RunConfig
from common.errors import GreedyfedError
from experiments.cli import main
from experiments.flower import PROJECT, FlowerError, tail
from experiments.loopback import Federation
from experiments.partition_files import write_partition
from experiments.progress import RoundProgress

CLIENTS, IMAGES, MAX_OURS = 3, 2000, 1.0
LOAD = """
import sys, time
from common.own_data import load_own_data
started = time.monotonic()
load_own_data(sys.argv[1])
print(time.monotonic() - started)
"""
#: Whose time -> phase -> seconds.
Round = dict[str, dict[str, float]]
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def phases(server: dict[str, Any], client: dict[str, Any]) -> Round:
    """A round by phase, from what its server and the client that finished last wrote down."""
    inside, seconds = defaultdict(float, client["seconds"]), defaultdict(float, server["seconds"])
    torch, training = inside["torch"], inside["training"]
    pause = (server["seen"] - server["paused"]) / 2 if server["kind"] == GREEDYFED else 0.0
    ours = {
        "import of our modules": inside["import"],
        "own data, read and checked": inside["my_data"],
        "model": inside["build_model"],
        "first use of torch": inside["first"] - training,
    }
    called = client["done"] - client["called"] - torch - training - inside["repeat"]
    ours["the rest"] = called - sum(ours.values())
    theirs = {
        "select": seconds["select"],
        "average": seconds["average"],
        "value": seconds["value"],
        "evaluate": seconds["evaluate"],
    }
    busy = server["asked"] - server["began"] + server["ended"] - server["answered"]
    theirs["the rest"] = busy - sum(theirs.values())
    theirs["half of the last pause"] = pause
    return {
        "Flower": {
            "request, until a process is started": client["started"] - server["asked"],
            "start of the process": client["called"] - client["started"],
            "reply, until the server sees it": server["seen"] - client["done"] - pause,
            "reply, fetched by the server": server["answered"] - server["seen"],
        },
        "client": {"import of torch": torch, "training": training} | ours,
        "server": theirs,
    }


def share(kind: str, which: Round) -> dict[str, float]:
    """A round's sums; what a client and a server of Flower's own do is Flower's."""
    whole = sum(sum(part.values()) for part in which.values())
    apart = which["client"]["import of torch"] + which["client"]["training"]
    ours = sum(which["client"].values()) - apart + sum(which["server"].values())
    ours *= kind == GREEDYFED
    return {"whole round": whole, "Flower's share": whole - apart - ours, "our share": ours}


def read_rounds(log: Path) -> dict[str, list[Round]]:
    """The rounds of each kind that count; raises FlowerError when a client is missing."""
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    clients = [line for line in lines if "called" in line]
    found: dict[str, list[Round]] = {kind: [] for kind in KINDS}
    for server in (line for line in lines if line.get("position")):
        asked, answered = server["asked"], server["answered"]
        inside = [client for client in clients if asked < client["called"] < answered]
        if len(inside) != CLIENTS:
            raise FlowerError(f"{len(inside)} of {CLIENTS} clients answered in a round")
        last = max(inside, key=lambda client: float(client["done"]))
        found[server["kind"]].append(phases(server, last))
    return found


def run_federation(folder: Path, num_rounds: int) -> dict[str, list[Round]]:
    """Start a federation in `folder` for one run; its rounds by kind."""
    digits = RunConfig.from_flat({"num-clients": CLIENTS, "dirichlet-alpha": 10.0})
    list(write_partition(digits, folder / "data", overwrite=False))
    config = RunConfig.from_flat(
        {
            "dataset": "own",
            "data-dir": str(folder / "data" / "server.npz"),
            "output-dir": str(folder / "runs"),
            "num-rounds": num_rounds,
            "clients-per-round": CLIENTS,
            "num-clients": CLIENTS,
            "round-deadline": 100.0,
        }
    )
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in config.to_flat().items()]
    (folder / "run.toml").write_text("".join(lines), encoding="utf-8")
    os.environ[LOG] = str(folder / "log.jsonl")  # all processes of the federation inherit it
    nodes = {
        f"client-{i}": f'client-id="client-{i}" data-path="{folder}/data/client-{i}.npz"'
        for i in range(CLIENTS)
    }
    progress = RoundProgress(Console(stderr=True), num_rounds)
    with progress, Federation(folder / "federation") as federation:
        progress.say("starting a federation; its rounds take turns with two times as many others")
        federation.start(nodes)
        flwr, options = federation.flwr, ("-c", str(folder / "run.toml"))
        answer = flwr.json("run", str(probe_app(folder / "app")), options=options)
        if not answer.get("success"):
            raise FlowerError(f"Flower refused the run: {answer.get('error-message', answer)}")
        try:  # asking Flower more often would slow the rounds down
            directory = folder / "runs" / config.run_id
            flwr.follow(str(answer["run-id"]), directory, progress, status_every=120.0)
        except FlowerError as error:
            logs = [
                tail(log.read_text(encoding="utf-8"))
                for log in (folder / "runs").glob("flower-*.log")
            ]
            raise FlowerError("\n".join([str(error), *logs])) from None
    return read_rounds(folder / "log.jsonl")


def probe_app(folder: Path) -> Path:
    """An app folder of this checkout's packages, whose two apps are those of deploy_probe."""
    for package in ("client_app", "common", "server_app"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PROJECT / package, folder / package, ignore=ignore)
    shutil.copy(Path(__file__).with_name("deploy_probe.py"), folder / "probe.py")
    about = (PROJECT / "pyproject.toml").read_text(encoding="utf-8")
    for ours, probe in (
        ("server_app.app:app", "probe:server"),
        ("client_app.app:app", "probe:client"),
        ("fab-include = [", 'fab-include = ["probe.py", '),
    ):
        about = about.replace(ours, probe)
    (folder / "pyproject.toml").write_text(about, encoding="utf-8")
    return folder


def loading_seconds(folder: Path, processes: int) -> list[float]:
    """How long new processes load a class folder, one after the other."""
    rng = np.random.default_rng(0)
    for i in range(IMAGES):
        image = Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8))
        place = folder / f"class-{i % 10}" / f"{i}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        image.save(place)
    command = [sys.executable, "-c", LOAD, str(folder)]
    run = [subprocess.run(command, capture_output=True, check=True) for _ in range(processes)]
    return [float(done.stdout) for done in run]


def cell(values: list[float]) -> str:
    """Median, smallest and largest of some seconds."""
    if max(values) < 0.0005:
        return "–"
    return f"{statistics.median(values):.3f} ({min(values):.3f}–{max(values):.3f})"


def tables(rounds: dict[str, list[Round]], loads: list[float]) -> tuple[Table, Table]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    counted = len(rounds[GREEDYFED])
    table = Table(title=f"Seconds a round, {CLIENTS} clients, {cores} cores, {counted} rounds each")
    table.add_column("")
    for heading in ("Flower, empty app", "the same with torch", "greedyfed"):
        table.add_column(heading, justify="right")
    for part, names in rounds[GREEDYFED][0].items():
        for name in names:
            cells = [cell([r[part][name] for r in rounds[kind]]) for kind in KINDS]
            table.add_row(f"{part}: {name}", *cells)
        table.add_section()
    sums = {kind: [share(kind, r) for r in rounds[kind]] for kind in KINDS}
    for name in sums[GREEDYFED][0]:
        table.add_row(name, *(cell([s[name] for s in sums[kind]]) for kind in KINDS))
    other = Table(title=f"Seconds to load {IMAGES:,} PNG images as own data")
    other.add_column("first process", justify="right")
    other.add_column("later processes", justify="right")
    other.add_row(cell(loads[:1]), cell(loads[1:]))
    return table, other


@app.command()
def deploy(
    quick: Annotated[bool, typer.Option("--quick", help="A third of the rounds.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 when a bar is missed.")
    ] = False,
) -> None:
    """Print the tables."""
    if shutil.which("openssl") is None:
        raise GreedyfedError(
            "openssl: not found, and the federation needs certificates; install it"
        )
    with tempfile.TemporaryDirectory(prefix="greedyfed-") as folder:
        loads = loading_seconds(Path(folder) / "images", 4)
        rounds = run_federation(Path(folder), BLOCK if quick else 3 * BLOCK)
    console = Console()
    if not console.is_terminal:
        console.width = 120
    for table in tables(rounds, loads):
        console.print(table)
    ours = statistics.median(share(GREEDYFED, r)["our share"] for r in rounds[GREEDYFED])
    met = ours <= MAX_OURS
    console.print(
        f"our share: {ours:.3f} s, at most {MAX_OURS:.1f} s: {'met' if met else 'MISSED'}"
    )
    if check and not met:
        raise typer.Exit(1)


if __name__ == "__main__":
    main(app)
