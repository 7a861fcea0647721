"""Print an override of docker-compose.yml that makes N clients: compose_for.py N.

Compose reads docker-compose.override.yml by itself. Every further site is a copy of site 0.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

COMPOSE = Path(__file__).parents[1] / "docker-compose.yml"


def override(clients: int) -> dict[str, Any]:
    """The services, networks and volumes to add to those of docker-compose.yml.

    Raises:
        ValueError: fewer clients than docker-compose.yml has.
    """
    base: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())
    present = sum(name.startswith("supernode-") for name in base["services"])
    if clients < present:
        raise ValueError(f"N = {clients}: docker-compose.yml has {present} clients; ask for more")
    new = range(present, clients)
    services: dict[str, Any] = {
        "credentials": {"volumes": [f"supernode-{i}:/credentials/supernode-{i}" for i in new]},
        "data": {"volumes": [f"data-{i}:/data/client-{i}" for i in new]},
        "gateway": {"networks": [f"site-{i}" for i in new]},
    }
    for i in new:
        for name in ("supernode-0", "clientapp-0"):
            text = json.dumps({name: base["services"][name]}).replace("-0", f"-{i}")
            services |= json.loads(text)
    volumes: dict[str, Any] = {f"{kind}-{i}": {} for i in new for kind in ("supernode", "data")}
    networks = {f"site-{i}": {"internal": True} for i in new}
    return {"services": services, "networks": networks, "volumes": volumes}


if __name__ == "__main__":
    try:
        print(yaml.safe_dump(override(int(sys.argv[1])), sort_keys=False), end="")
    except (IndexError, ValueError) as error:
        sys.exit(f"compose_for.py: {error}; call it with a number of clients")
