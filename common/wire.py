"""What travels between server and clients, as Flower records; every reply is validated here.

A client is not trusted: shapes and sizes are checked before anything is allocated, and nothing is
unpickled.
"""

import io
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from common.errors import one_line, printable
from common.fields import MAX_EPOCHS, MAX_FIGURE, BadReplyError, cut, figure, record_in, whole
from common.params import Vector
from common.task import Task, encode_task

CLIENT, PARAMS, ROUND, RESULT = "client", "params", "round", "result"
MAX_CLIENT_ID = 100
NO_ANSWER = "no answer before the deadline"


@dataclass(frozen=True)
class ClientInfo:
    """Who a client is. The last three are known of simulated clients only."""

    client_id: str
    num_examples: int
    label_histogram: tuple[int, ...] | None = None
    local_epochs: int | None = None
    noise_sigma: float | None = None


@dataclass(frozen=True, eq=False)
class ClientUpdate:
    """A client's trained parameters (D,) float32, n_k, and the noise σ_k that it added to them.

    No training loss: it would tell, without noise, how well the model fits the client's data.
    """

    client_id: str
    params: Vector
    num_examples: int
    noise_sigma: float = 0.0


def encode_info(info: ClientInfo) -> RecordDict:
    record: dict[str, str | int | float | list[int]] = {
        "client-id": info.client_id,
        "num-examples": info.num_examples,
    }
    if info.label_histogram is not None:
        record["label-histogram"] = list(info.label_histogram)
    if info.local_epochs is not None:
        record["local-epochs"] = info.local_epochs
    if info.noise_sigma is not None:
        record["noise-sigma"] = info.noise_sigma
    return RecordDict({CLIENT: ConfigRecord(record)})  # type: ignore[arg-type]


def decode_info(content: RecordDict, num_classes: int) -> ClientInfo:
    """Who a client of a task with so many classes is.

    Raises:
        BadReplyError: a field that is missing, of another type, or out of its range.
    """
    record = record_in(content, CLIENT, ConfigRecord)
    if record is None:
        raise BadReplyError("does not say who it is")
    client_id, epochs = record.get("client-id"), record.get("local-epochs")
    histogram, sigma = record.get("label-histogram"), record.get("noise-sigma")
    if not (isinstance(client_id, str) and client_id.isprintable()):
        raise BadReplyError(f"client-id {cut(client_id)} is not a printable text")
    if not 0 < len(client_id) <= MAX_CLIENT_ID:
        raise BadReplyError(f"client-id has {len(client_id)} characters, not 1 to {MAX_CLIENT_ID}")
    count = whole(record.get("num-examples"), "num-examples")
    return ClientInfo(
        client_id,
        count,
        None if histogram is None else _histogram(histogram, count, num_classes),
        None if epochs is None else whole(epochs, "local-epochs", most=MAX_EPOCHS),
        None if sigma is None else figure(sigma, "noise-sigma", least=0.0),
    )


def _histogram(labels: object, count: int, num_classes: int) -> tuple[int, ...]:
    """Of each class how many of a client's `count` examples it has."""
    name = "label-histogram"
    if not isinstance(labels, list):
        raise BadReplyError(f"{name} is {cut(labels)}, not a list")
    if len(labels) > num_classes:
        raise BadReplyError(f"{name} has {len(labels)} classes, the task has {num_classes}")
    counts = tuple(whole(n, f"{name}[{k}]", least=0) for k, n in enumerate(labels))
    if sum(counts) != count:
        raise BadReplyError(f"{name} has {sum(counts)} examples, num-examples is {count}")
    return counts


def encode_params(params: Vector, server_round: int, task: Task) -> RecordDict:
    """The server's request to train: the global model (D,), the round, and the task."""
    content = encode_task(task)
    content[PARAMS] = params_record(params)
    content[ROUND] = ConfigRecord({"server-round": server_round})
    return content


def params_record(params: Vector) -> ArrayRecord:
    """One flat array: far fewer objects to transfer than one per layer."""
    sent = _header(len(params)) + params.tobytes()
    return ArrayRecord({PARAMS: Array("float32", params.shape, "numpy.ndarray", sent)})


def decode_round(content: RecordDict) -> int:
    """The round of a request to train."""
    record = record_in(content, ROUND, ConfigRecord)
    return whole(record and record["server-round"], "server-round")


def params_bytes(content: RecordDict) -> bytes:
    """The model as it was sent; raises BadReplyError when there is none."""
    arrays = record_in(content, PARAMS, ArrayRecord)
    if arrays is None or PARAMS not in arrays:
        raise BadReplyError(f"has no {PARAMS!r} array")
    return arrays[PARAMS].data


def decode_params(sent: bytes, size: int) -> Vector:
    """The vector (D,) of a model with D = `size`; raises BadReplyError when it is none."""
    header = _header(size)
    if sent.startswith(header) and len(sent) == len(header) + 4 * size:
        return np.frombuffer(sent, np.float32, offset=len(header)).copy()
    # The .npy header inside the bytes decides what numpy would allocate, so it is read first.
    stream = io.BytesIO(sent)
    try:
        if np.lib.format.read_magic(stream) != (1, 0):
            raise ValueError("not version 1.0")
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    except Exception as error:  # of a tokenizer and a parser: TokenError, TypeError, …
        raise BadReplyError(f"{PARAMS!r} is not a .npy array: {one_line(error):.100}") from error
    if shape != (size,) or dtype != np.float32:
        told = printable(f"{dtype} {shape}")
        raise BadReplyError(f"parameters are {told:.100}, the model has float32 ({size},)")
    if len(sent) - stream.tell() != 4 * size:
        raise BadReplyError(f"parameters have {len(sent) - stream.tell()} bytes, not {4 * size}")
    return np.frombuffer(sent, np.float32, offset=stream.tell()).copy()


def encode_update(update: ClientUpdate) -> RecordDict:
    result = MetricRecord({"num-examples": update.num_examples, "noise-sigma": update.noise_sigma})
    return RecordDict({PARAMS: params_record(update.params), RESULT: result})


def decode_update(
    content: RecordDict, client_id: str, size: int, max_examples: int = 0
) -> ClientUpdate:
    """A client's update of a model with D = `size`.

    Raises:
        BadReplyError: missing records, wrong shape or dtype, NaN or Inf, a number of examples below
            1 or above `max_examples` (0: no limit), or a noise that is none.
    """
    result = record_in(content, RESULT, MetricRecord)
    if result is None:
        raise BadReplyError(f"has no {RESULT!r} record")
    count = whole(result.get("num-examples"), "num-examples")
    if max_examples and count > max_examples:
        raise BadReplyError(f"claims {count} examples, more than max-examples = {max_examples}")
    params = decode_params(params_bytes(content), size)
    if not np.isfinite(params).all():
        raise BadReplyError(
            f"{int((~np.isfinite(params)).sum())} of {size} parameters are NaN or Inf"
        )
    # Nobody may count on noise that is not named.
    sigma = figure(result.get("noise-sigma", 0.0), "noise-sigma", least=0.0)
    return ClientUpdate(client_id, params, count, sigma)


def encode_loss(loss: float) -> RecordDict:
    """A client's answer: the loss in nats of the model that it was sent, on its own examples."""
    return RecordDict({RESULT: MetricRecord({"loss": loss})})


def decode_loss(content: RecordDict) -> float:
    """Raises BadReplyError for anything but a loss within ±MAX_FIGURE."""
    result = record_in(content, RESULT, MetricRecord)
    return figure(None if result is None else result.get("loss"), "loss", least=-MAX_FIGURE)


def replies_by_request(
    requests: Iterable[Message], replies: Iterable[Message]
) -> dict[int, Message]:
    """Node id -> its reply. An error reply names its request, not the node that failed."""
    node_of = {m.metadata.message_id: m.metadata.dst_node_id for m in requests}
    found = {}
    for reply in replies:
        node = node_of.get(reply.metadata.reply_to_message_id)
        if node is not None:
            found[node] = reply
    return found


def content_of(reply: Message | None) -> RecordDict:
    """The content of a reply; raises BadReplyError when there is none, or it is an error."""
    if reply is None:
        raise BadReplyError(NO_ANSWER)
    if reply.has_error():
        reason = printable(" ".join((reply.error.reason or "").split())) or "no reason given"
        raise BadReplyError(f"{reason:.300} (error code {reply.error.code})")
    return reply.content


@lru_cache(maxsize=4)
def _header(size: int) -> bytes:
    """How numpy begins a .npy array of `size` float32 numbers."""
    stream = io.BytesIO()
    np.save(stream, np.zeros(size, np.float32))
    return stream.getvalue()[: -4 * size]
