"""`greedyfed sweep`: many runs from one TOML file, in which a list multiplies out.

dataset = "digits"          # keys of a run, for all of them
seeds = [0, 1, 2]           # the same as seed = [0, 1, 2]
[[runs]]                    # groups of runs, if all are not of one product; their keys win
algorithm = ["greedyfed", "fedavg"]
[[runs]]
algorithm = "fedprox"
proximal-mu = [0.01, 0.1]
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from common.config import ConfigError, RunConfig, Scalar
from common.errors import printable
from experiments.parallel import Outcome, Workers, run_all
from experiments.screen import plain
from experiments.settings import check_data, parse_change, simulated

#: More runs than these are often a mistake, and need --yes.
MANY_RUNS = 2_000

Keys = Mapping[str, Any]
Jobs = Annotated[int, typer.Option(min=1, help="Processes, each at one run.")]
RayAddress = Annotated[
    str | None,
    typer.Option("--ray", metavar="ADDRESS", help="On this Ray cluster; `local` starts one."),
]
Yes = Annotated[bool, typer.Option("--yes", help=f"Also more than {MANY_RUNS:,} runs.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list the runs.")]


def groups_of(spec: Keys) -> list[Keys]:
    """The groups of a spec: its own keys, with those of each of its `[[runs]]`.

    Raises:
        ConfigError: `runs` is no array of tables.
    """
    runs = spec.get("runs", [{}])
    if not isinstance(runs, list) or not all(isinstance(group, dict) for group in runs):
        raise ConfigError(f"runs = {runs!r:.60}: must be groups of keys; write each as [[runs]]")
    common = {k: v for k, v in spec.items() if k != "runs"}
    return [_seed(common) | _seed(group) for group in runs]


def _seed(keys: Keys) -> dict[str, Any]:
    return {"seed" if key == "seeds" else key: value for key, value in keys.items()}


def count_runs(groups: Iterable[Keys]) -> int:
    """How many runs the groups multiply out to."""
    return sum(prod(len(v) for v in g.values() if isinstance(v, list)) for g in groups)


def expand(groups: Iterable[Keys]) -> list[RunConfig]:
    """The runs of the groups, the last key varying fastest; equal runs come once.

    Raises:
        ConfigError: a run that cannot be.
    """
    runs = dict[str, RunConfig]()
    for keys in groups:
        values = [value if isinstance(value, list) else [value] for value in keys.values()]
        for combination in product(*values):
            run = simulated(RunConfig.from_flat(dict(zip(keys, combination, strict=True))))
            runs.setdefault(run.run_id, run)
    return list(runs.values())


def check_count(number: int, yes: bool) -> None:
    """Raises ConfigError for no run, and for very many without --yes."""
    if number == 0:
        raise ConfigError("no run: a list of values is empty; give it values")
    if number > MANY_RUNS and not yes:
        raise ConfigError(
            f"{number:,} runs: more than {MANY_RUNS:,}; shorten the lists, or say --yes"
        )


def read_spec(path: Path, changes: Keys, yes: bool) -> list[RunConfig]:
    """The runs of a TOML file; `changes` are keys that win over all of its own.

    Raises:
        ConfigError: naming the file and what is wrong with it.
    """
    try:
        groups = groups_of(tomllib.loads(path.read_text(encoding="utf-8")))
        groups = [{**group, **changes} for group in groups]
        check_count(count_runs(groups), yes)
        return expand(groups)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: {error}; give a TOML file of key = value lines") from error
    except ConfigError as error:
        raise ConfigError("\n".join(f"{path}: {line}" for line in str(error).split("\n"))) from None


def changes_of(texts: list[str] | None, given: Mapping[str, Scalar | None]) -> dict[str, Scalar]:
    """Keys of `-c` and of named options, the latter win; None is not given."""
    changes = dict(parse_change(text) for text in texts or [])
    return changes | {key: value for key, value in given.items() if value is not None}


def check_datasets(runs: Iterable[RunConfig]) -> None:
    """Load each data set once here, so that its errors come (and downloads end) before the runs."""
    for run in {(r.data.dataset, r.data.data_dir): r for r in runs}.values():
        check_data(run)


def report(outcome: Outcome, console: Console) -> None:
    """Say what failed, and leave with 1 if anything did."""
    for run_id, reason in outcome.failed.items():
        console.print(plain(f"failed: {run_id}: {reason:.300}"), soft_wrap=True)
    if outcome.failed:
        raise typer.Exit(1)


def lines(runs: Iterable[RunConfig]) -> Iterator[str]:
    """A line for each run: its name, and the keys that are not at their default."""
    default = RunConfig().to_flat() | {"output-dir": None, "data-dir": None}
    for run in runs:
        shown = {k: v for k, v in run.to_flat().items() if default[k] is not None}
        keys = " ".join(f"{k}={v}" for k, v in shown.items() if v != default[k])
        yield printable(f"{run.run_id}  {keys}")


def sweep(
    spec: Annotated[Path, typer.Argument(help="TOML file; a list of values multiplies out.")],
    change: Annotated[
        list[str] | None, typer.Option("-c", metavar="KEY=VALUE", help="Set a key; repeatable.")
    ] = None,
    data_dir: Annotated[str | None, typer.Option(help="Same as -c data-dir=…")] = None,
    output_dir: Annotated[str | None, typer.Option(help="Same as -c output-dir=…")] = None,
    jobs: Jobs = 1,
    ray: RayAddress = None,
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Many runs from one file. Finished ones are skipped, interrupted ones go on."""
    changes = changes_of(change, {"data-dir": data_dir, "output-dir": output_dir})
    runs = read_spec(spec, changes, yes)
    if dry_run:
        print(*lines(runs), f"{len(runs)} runs", sep="\n")
        return
    check_datasets(runs)
    console = Console(stderr=True)
    outcome = run_all(runs, Workers(jobs, ray), console)
    report(outcome, console)
    print(*sorted({run.output_dir for run in runs}), sep="\n")
