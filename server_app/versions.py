"""The versions of packages by which a run was made: last digits may depend on them."""

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def recorded_versions(config_file: Path) -> dict[str, str]:
    """The versions that a run's config.json has; empty where that cannot be read."""
    try:
        versions = json.loads(config_file.read_text(encoding="utf-8"))["versions"]
        return {str(package): str(number) for package, number in versions.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def current_versions() -> dict[str, str]:
    """The versions of what computes numbers here."""
    found = {}
    for package in ("greedyfed", "flwr", "torch", "torchvision", "numpy", "scikit-learn"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
