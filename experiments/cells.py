"""The cells of the paper's four tables, and what they should give.

paper.csv has the 252 published figures, paper.toml the keys of each condition and algorithm.
"""

import csv
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from common.config import ConfigError

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Cell:
    """A cell of a table: test accuracy in % after T rounds, as mean ± std of five seeds.

    `mean` and `std` are the paper's; None in a column that the paper does not have.
    """

    table: str
    dataset: str  # of RunConfig
    condition: str
    algorithm: str
    num_clients: int
    clients_per_round: int
    rounds: int
    mean: float | None = None
    std: float | None = None


@lru_cache(maxsize=1)
def presets() -> dict[str, Any]:
    """paper.toml."""
    return tomllib.loads((_HERE / "paper.toml").read_text(encoding="utf-8"))


def key_of(algorithm: str) -> str:
    """The `algorithm` of a run for a name of the paper's tables."""
    return str(presets()["algorithms"][algorithm][0]["algorithm"])


@lru_cache(maxsize=1)
def all_cells() -> tuple[Cell, ...]:
    """The 252 cells of the paper in its order, and the columns beyond it."""
    cells = []
    with open(_HERE / "paper.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            n, m, t = int(row["N"]), int(row["M"]), int(row["T"])
            figures = float(row["mean"]), float(row["std"])
            where = row["table"], row["dataset"].lower(), row["condition"], row["algorithm"]
            cells.append(Cell(*where, n, m, t, *figures))
    for table, conditions in presets()["extra"].items():
        rows = {(c.dataset, c.algorithm): c for c in cells if c.table == table}
        for condition, cell in product(conditions, rows.values()):
            where = table, cell.dataset, condition, cell.algorithm
            cells.append(Cell(*where, cell.num_clients, cell.clients_per_round, cell.rounds))
    return tuple(cells)


def select(table: str | None, dataset: str | None, algorithms: Iterable[str]) -> list[Cell]:
    """The cells of a table, a data set and some algorithms; None or none: of all.

    Raises:
        ConfigError: a name that no cell has.
    """
    cells = list(all_cells())
    wanted: list[tuple[str, str | None]] = [("table", table), ("dataset", dataset)]
    for name, value in wanted:
        known = list(dict.fromkeys(str(getattr(c, name)) for c in cells))
        if value is not None and value not in known:
            raise ConfigError(f"--{name} {value}: unknown; use one of {', '.join(known)}")
    keys = list(dict.fromkeys(key_of(c.algorithm) for c in cells))
    for algorithm in algorithms:
        if algorithm not in keys:
            raise ConfigError(f"--algorithm {algorithm}: unknown; use one of {', '.join(keys)}")
    return [
        c
        for c in cells
        if table in (None, c.table)
        and dataset in (None, c.dataset)
        and (not list(algorithms) or key_of(c.algorithm) in algorithms)
    ]
