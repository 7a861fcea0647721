"""What the server announces with every request, as a Flower record."""

from dataclasses import dataclass

from flwr.app import ConfigRecord, RecordDict

from common.fields import BadReplyError, cut, names, record_in, whole
from common.traits import Traits

TASK = "task"
INPUTS = "numbers", "pixels", "whole"


@dataclass(frozen=True)
class Task:
    """What the server announces with every request: what an example is, the classes, the network.

    `inputs` is "whole" (int64, ids of an embedding), "pixels" (images in [0, 1]) or "numbers"
    (float32). `features` and `classes` are names, or empty: then features go by their place, and
    the classes are "0", "1", …, of which `unseen` have no example at the server, and may be none.
    `network` is what the server found when it tried its own out.
    """

    input_shape: tuple[int, ...]
    num_classes: int
    inputs: str = "numbers"
    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    network: Traits | None = None
    unseen: tuple[int, ...] = ()


def encode_task(task: Task) -> RecordDict:
    """The server's question who a client is."""
    record: dict[str, int | float | str | list[int] | list[str]] = {
        "input-shape": list(task.input_shape),
        "num-classes": task.num_classes,
        "inputs": task.inputs,
        "features": list(task.features),
        "classes": list(task.classes),
        "unseen": list(task.unseen),
    }
    if task.network is not None:
        record |= {
            "constant": list(task.network.constant),
            "positive": list(task.network.positive),
            "layout": task.network.layout,
            "fixed": task.network.fixed,
        }
    return RecordDict({TASK: ConfigRecord(record)})  # type: ignore[arg-type]


def decode_task(content: RecordDict) -> Task:
    """Raises BadReplyError for a request that does not say, or of other types."""
    record = record_in(content, TASK, ConfigRecord)
    if record is None:
        raise BadReplyError(f"has no {TASK!r} record")
    shape, inputs = record.get("input-shape"), record.get("inputs")
    if not isinstance(shape, list):
        raise BadReplyError(f"input-shape is {cut(shape)}, not a list")
    if not isinstance(inputs, str) or inputs not in INPUTS:
        raise BadReplyError(f"inputs is {cut(inputs)}, none of {', '.join(INPUTS)}")
    return Task(
        tuple(whole(n, "input-shape") for n in shape),
        whole(record.get("num-classes"), "num-classes"),
        inputs,
        names(record.get("features"), "features"),
        names(record.get("classes"), "classes"),
        _network(record) if "layout" in record else None,
        _unseen(record.get("unseen")),
    )


def _unseen(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise BadReplyError(f"unseen is {cut(value)}, not a list")
    return tuple(whole(k, "unseen", least=0) for k in value)


def _network(record: ConfigRecord) -> Traits:
    layout, fixed = record["layout"], record.get("fixed")
    if not (isinstance(layout, str) and isinstance(fixed, float)):
        raise BadReplyError("layout and fixed are not a text and a number")
    return Traits(
        names(record.get("constant"), "constant"),
        names(record.get("positive"), "positive"),
        layout,
        fixed,
    )
