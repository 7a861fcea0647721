"""The files of a run directory, read and checked: what is wrong with one is told in one line."""

from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open

from common.config import Scalar
from common.errors import GreedyfedError, one_line, printable
from server_app.events import parsed
from server_app.run_directory import CONFIG, STATE, SUMMARY

Record = dict[str, Any]
#: No loss, value or time of a run comes near the limit, and sums of squares stay finite.
Number = Annotated[float, Field(ge=-1e100, le=1e100)]
#: That of the test split, which no one sums, may be infinite.
TestLoss = Annotated[float, Field(allow_inf_nan=True)]
#: Infinite where a single sample was drawn.
StandardError = Annotated[float, Field(ge=0, allow_inf_nan=True)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Figures = dict[str, Number]
#: What a round may tell of clients by class; a valuation without classes tells none.
BY_CLASS = ("class_shapley", "class_cumulative")


class RunDataError(GreedyfedError):
    """There is no run to read, or its files cannot be read."""


class _Content(BaseModel):
    """Later versions may add to it, and old ones lack some."""

    model_config = ConfigDict(
        extra="allow", strict=True, allow_inf_nan=False, protected_namespaces=()
    )


class _Config(_Content):
    """The keys with which readers compute; all else is shown as it is, of whatever version."""

    algorithm: str
    seed: Count
    num_rounds: Count = Field(alias="num-rounds")
    clients_per_round: Count = Field(0, alias="clients-per-round")
    spare_clients: Count = Field(0, alias="spare-clients")
    cumulative_alpha: Number = Field(0.0, alias="cumulative-alpha")
    clip_norm: float = Field(0.0, alias="clip-norm", ge=0)
    privacy_delta: float = Field(0.0, alias="privacy-delta", ge=0, lt=1)


class _About(_Content):
    run_id: str = Field(alias="run-id")
    config: dict[str, Scalar]
    versions: dict[str, str] = {}


class _Record(_Content):
    round: Count
    cohort: list[str]
    shapley: Figures
    std_error: dict[str, StandardError]
    cumulative: Figures
    evaluations: Count
    valuation_end: str
    val_loss: Number
    test_loss: TestLoss
    test_accuracy: Number
    failures: dict[str, str]
    seconds: Figures
    bytes: Figures
    val_accuracy: Number = 0.0
    gain: Number = 0.0
    leave_one_out: Figures = {}
    class_shapley: dict[str, list[Number]] = {}
    class_cumulative: dict[str, list[Number]] = {}
    class_losses: list[Number] = []


class _Client(_Content):
    client_id: str
    value: Number = 0.0
    times_selected: Count = 0
    times_counted: Count = 0
    num_examples: Count | None = None
    local_epochs: Count | None = None
    noise_sigma: Number | None = None
    label_histogram: list[Count] | None = None
    class_values: list[Number] = []
    epsilon: float | None = None
    delta: Number = 0.0


class _Summary(_Content):
    status: Literal["complete"]
    clients: list[_Client]
    round: Count = 0
    val_loss: Number = 0.0
    test_loss: TestLoss = 0.0
    test_accuracy: Number = 0.0
    seconds: Number = 0.0


class _Checkpoint(_Content):
    round: Count
    client_ids: list[str]


def read_config(path: Path) -> Record:
    """config.json: `run-id`, `config` (flat, as it is written), `versions`."""
    about = _parsed(path, _text(path), "give the directory of a run")
    if not isinstance(about, dict) or not {"run-id", "config"} <= about.keys():
        raise RunDataError(f"{path}: is not that of a run; give a run directory")
    _check(_About, about, path)
    if not {"algorithm", "seed", "num-rounds"} <= about["config"].keys():
        raise RunDataError(
            f"{path}: lacks algorithm, seed or num-rounds; give a run of this project"
        )
    _check(_Config, about["config"], path, "config.")
    return about


def read_rounds(path: Path, config: Record) -> list[Record]:
    """The lines of history.jsonl; a last one that is cut short is left out."""
    most = config.get("clients-per-round", inf) + config.get("spare-clients", 0)
    lines, records = (_text(path) if path.exists() else "").splitlines(), list[Record]()
    widths = set[int]()
    for number, line in enumerate(lines, start=1):
        try:
            record = parsed(line)
        except ValueError as error:
            if number == len(lines):  # still being written, or cut short by a kill
                break
            raise damaged(path, f"line {number} is no JSON") from error
        _check(_Record, record, path, f"line {number}: ")
        if record["round"] != number:
            raise damaged(path, f"line {number} is round {record['round']}")
        of = {"shapley": "cohort", "failures": "cohort"} | dict.fromkeys(BY_CLASS, "shapley")
        for key, whole in of.items():
            if strange := record.get(key, {}).keys() - set(record[whole]):
                why = f"{key}: {min(strange)!r} is not of the round's {whole}"
                raise damaged(path, f"line {number}: {why}")
        widths |= {len(values) for key in BY_CLASS for values in record.get(key, {}).values()}
        widths |= {len(losses) for losses in [record.get("class_losses")] if losses}
        if len(widths) > 1:
            why = "its figures by class are not of as many classes as those before"
            raise damaged(path, f"line {number}: {why}")
        if len(record["shapley"]) > most:
            raise damaged(path, f"line {number}: values more clients than {CONFIG} lets take part")
        records.append(record)
    if len(records) > config["num-rounds"]:
        raise damaged(path, f"has {len(records)} rounds, more than the num-rounds of {CONFIG}")
    return records


def read_summary(path: Path) -> Record | None:
    """summary.json; None before the run's end."""
    if not path.exists():
        return None
    remedy = "write it anew with --resume, or give another run"
    summary: Record = _parsed(path, _text(path), remedy)
    _check(_Summary, summary, path)
    return summary


def read_checkpoint(path: Path) -> tuple[int, dict[str, Record]]:
    """Its round, and of each client `num_examples` and `value`; the model is not loaded."""
    if not path.exists():
        return 0, {}
    try:
        with safe_open(path, framework="numpy") as file:
            about = parsed(file.metadata()["about"])
            sizes = file.get_tensor("num_examples").tolist()
            values = file.get_tensor("value").tolist()
        _check(_Checkpoint, about, path)
        each = zip(about["client_ids"], sizes, values, strict=True)
        return about["round"], {c: {"num_examples": n, "value": v} for c, n, v in each}
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise damaged(path, one_line(error)) from error


def check_together(
    path: Path, config: Record, rounds: list[Record], done: int, summary: Record | None
) -> None:
    """Raises RunDataError where files are whole, and do not belong together."""
    if done > len(rounds):
        raise damaged(path, f"lacks rounds that {STATE} has ({done})")
    if summary is None:
        return
    if len(rounds) < config["num-rounds"]:
        raise damaged(
            path, f"lacks rounds: {len(rounds)} of {config['num-rounds']}, and the run is complete"
        )
    last = rounds[-1]
    if any(summary.get(key, last[key]) != last[key] for key in ("round", "val_loss")):
        raise damaged(path, f"its last round is not that of {SUMMARY}")
    known = {client["client_id"] for client in summary["clients"]}
    if lost := {client for record in rounds for client in record["cohort"]} - known:
        raise damaged(path.with_name(SUMMARY), f"lacks the client {min(lost)!r} of the history")


def damaged(
    path: Path, why: str, remedy: str = "restore the file, or give another run"
) -> RunDataError:
    """The error for a file that is not as a run writes it; what it quotes of it may be anything."""
    return RunDataError(f"{path}: cannot be read: {printable(why):.300}; {remedy}")


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise damaged(path, one_line(error)) from error


def _parsed(path: Path, text: str, remedy: str) -> Any:
    try:
        return parsed(text)
    except ValueError as error:
        raise damaged(path, one_line(error), remedy) from error


def _check(model: type[BaseModel], content: object, path: Path, where: str = "") -> None:
    try:
        model.model_validate(content)
    except ValidationError as error:
        what = error.errors()[0]
        at = ".".join(map(str, what["loc"])) or "it"
        raise damaged(path, f"{where}{at}: {what['msg'].lower()}") from error
