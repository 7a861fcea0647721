"""Register the SuperNodes' public keys with the SuperLink: register.py SUPERLINK CA KEY.pub..."""

import json
import os
import subprocess
import sys
from pathlib import Path

KNOWN = "[code: 23]"  # what Flower 1.42 answers to a key that is registered already


def main(superlink: str, ca: str, *keys: str) -> None:
    """Register every key; exits with Flower's answer if it refuses one."""
    home = Path(os.environ["FLWR_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    connection = f'[superlink.cluster]\naddress = "{superlink}"\nroot-certificates = "{ca}"\n'
    (home / "config.toml").write_text(connection)
    for key in map(Path, keys):
        command = ["flwr", "supernode", "register", str(key), "cluster", "--name", key.stem]
        done = subprocess.run(
            [*command, "--format", "json"], capture_output=True, text=True, check=False
        )
        if KNOWN in done.stdout + done.stderr:
            print(f"{key.stem}: already registered")
        elif done.stdout and json.loads(done.stdout[done.stdout.index("{") :]).get("success"):
            print(f"{key.stem}: registered")
        else:
            sys.exit(f"{key.stem}: {done.stdout}{done.stderr}")


if __name__ == "__main__":
    main(*sys.argv[1:])
