"""The cluster of docker-compose.yml: bring it up, train on it from here, take it down.

`python -m experiments.cluster run` is `make cluster`, `… down` is `make cluster-down`.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from common.config import RunConfig, Scalar
from common.errors import GreedyfedError
from experiments.cli import main
from experiments.flower import PROJECT, Flwr, tail
from experiments.progress import RoundProgress
from experiments.settings import parse_change, read_toml
from experiments.summary import summary_table

CONFIG = PROJECT / "experiments" / "cluster.toml"
#: On a slow machine the SuperNodes take their time; one that Flower still counts as online after a
#: crash may come back only after a minute.
ONLINE_SECONDS = 180.0
COPY_EVERY_SECONDS, STATUS_EVERY_SECONDS = 2.0, 20.0
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class ClusterError(GreedyfedError):
    """Docker does not do what the cluster needs."""


class Cluster:
    """The services of docker-compose.yml, by Compose v2 or docker-compose 1.29."""

    def __init__(self) -> None:
        """Find Docker.

        Raises:
            ClusterError: no engine answers, or there is no Compose.
        """
        if why_not := no_engine():
            raise ClusterError(why_not)
        plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
        self._compose = ["docker-compose"] if plugin.returncode else ["docker", "compose"]
        if plugin.returncode and not shutil.which("docker-compose"):
            raise ClusterError("no `docker compose` and no `docker-compose` here; install one")
        self.nodes = sum(s.startswith("supernode-") for s in self("config", "--services").split())

    def __call__(self, *arguments: str, show: bool = False) -> str:
        """What a Compose command prints, or with `show` prints for the user to see.

        Raises:
            ClusterError: it failed.
        """
        command = [*self._compose, *arguments]
        out, err = (sys.stderr, None) if show else (subprocess.PIPE, subprocess.PIPE)
        done = subprocess.run(command, cwd=PROJECT, stdout=out, stderr=err, text=True, check=False)
        if done.returncode:
            raise ClusterError(
                f"`{' '.join(command)}` exited with {done.returncode}\n{tail(done.stderr or '')}"
            )
        return done.stdout or ""

    def up(self) -> None:
        """Build the images and start every service; what runs already stays."""
        self("build", show=True)
        self("up", "--detach", show=True)

    def down(self) -> None:
        """Remove containers, networks, volumes and images, those of older builds too."""
        self("down", "--volumes", "--remove-orphans", show=True)
        images = ["--filter", "label=project=greedyfed"]
        prune = ["docker", "image", "prune", "--all", "--force", *images]
        subprocess.run(prune, stdout=subprocess.DEVNULL, check=True)

    def container(self, service: str) -> str:
        """The id of a service's container."""
        return self("ps", "--quiet", service).strip()

    def operator(self, home: Path) -> Flwr:
        """The flwr command for this cluster, from this machine."""
        if not copy(self.container("superlink"), "/credentials/ca.crt", home / "ca.crt"):
            raise ClusterError("the SuperLink's container has no CA certificate; is it running?")
        return Flwr(home, self("port", "superlink", "8000").strip(), home / "ca.crt")


def no_engine() -> str:
    """Why no Docker engine can be used here; empty if one can."""
    if not shutil.which("docker"):
        return "no `docker` command here; install Docker and Compose"
    done = subprocess.run(["docker", "info"], capture_output=True, text=True, check=False)
    return f"no Docker engine answers: {tail(done.stderr)}" if done.returncode else ""


def copy(container: str, path: str, to: Path) -> bool:
    """Copy from a container, its volumes included; False when it is not there."""
    command = ["docker", "cp", f"{container}:{path}", str(to)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def train(cluster: Cluster, config: RunConfig, output: Path, progress: RoundProgress) -> Path:
    """Run a configuration on a cluster that is up; returns the copied run directory.

    Raises:
        ClusterError: the nodes do not come online.
        FlowerError: with what Flower says of the run's end.
    """
    remote, directory = f"{config.output_dir}/{config.run_id}", output / config.run_id
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="greedyfed-") as home:
        flwr = cluster.operator(Path(home))
        wait_for_nodes(flwr, cluster.nodes, progress)
        serverapp, copied_at = cluster.container("serverapp"), 0.0

        def refresh() -> None:
            nonlocal copied_at
            if time.monotonic() - copied_at >= COPY_EVERY_SECONDS:
                copy(serverapp, remote, output)
                copied_at = time.monotonic()

        try:
            flwr.train(
                config,
                directory,
                progress,
                refresh=refresh,
                status_every=STATUS_EVERY_SECONDS,
            )
        finally:
            copy(serverapp, remote, output)
    return directory


def wait_for_nodes(flwr: Flwr, count: int, progress: RoundProgress) -> None:
    """Until that many SuperNodes are online.

    Raises:
        ClusterError: not in time.
    """
    online, deadline = -1, time.monotonic() + ONLINE_SECONDS
    while online < count:
        nodes = flwr.json("supernode", "list").get("nodes", [])
        now = sum(node["status"] == "online" for node in nodes)
        if now != online:
            progress.say(f"{now} of {count} nodes are online")
        elif time.monotonic() > deadline:
            raise ClusterError(
                f"{now} of {count} nodes are online after {ONLINE_SECONDS:g} s; see their logs: "
                "docker compose logs supernode-0"
            )
        online = now


@app.command()
def run(
    change: Annotated[
        list[str] | None, typer.Option("-c", metavar="KEY=VALUE", help="Set a key; repeatable.")
    ] = None,
) -> None:
    """Build, start, train, and show the result. The last line printed is the run directory."""
    cluster = Cluster()
    name = f"cluster-{time.strftime('%Y%m%d-%H%M%S')}"
    keys: dict[str, Scalar] = read_toml(CONFIG) | {"num-clients": cluster.nodes}
    keys |= dict(parse_change(text) for text in change or [])
    config = RunConfig.from_flat(keys | {"output-dir": f"/results/{name}"})
    cluster.up()
    with RoundProgress(Console(stderr=True), config.num_rounds) as progress:
        directory = train(cluster, config, PROJECT / "runs" / name, progress)
    Console().print(summary_table(directory))
    print(directory)


@app.command()
def down() -> None:
    """Remove the cluster's containers, networks, volumes and images."""
    Cluster().down()


if __name__ == "__main__":
    main(app)
