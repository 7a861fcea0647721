"""What tests do to the containers of docker-compose.yml."""

import os
import subprocess

#: Compose's name of the cluster under test.
PROJECT = f"greedyfed-test-{os.getpid()}"


def docker(*arguments):
    """What a docker command prints; it must succeed."""
    done = subprocess.run(
        ["docker", *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def inside(cluster, service, *command):
    """Lines that a command prints in a service's container."""
    return cluster("exec", "-T", service, *command).splitlines()
