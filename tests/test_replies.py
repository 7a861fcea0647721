"""What a client may say: every field of a reply is of its type and in its range, or refused."""

import json
from math import inf, nan

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from rich.console import Console

from common.errors import printable
from common.fields import BadReplyError
from common.wire import (
    ClientInfo,
    ClientUpdate,
    content_of,
    decode_info,
    decode_loss,
    decode_update,
    encode_info,
    encode_loss,
    encode_update,
)
from experiments.ledger import ledger_of
from experiments.run_data import read_run
from experiments.status import status
from tests.any_client import run_with

CLASSES = 10
INFO = ClientInfo("clinic", 6, (1, 2, 3), 5, 0.25)
UPDATE = ClientUpdate("clinic", np.arange(3, dtype=np.float32), 6, 0.25)


def info(**fields):
    record = dict(encode_info(INFO)["client"]) | {k.replace("_", "-"): v for k, v in fields.items()}
    return RecordDict({"client": ConfigRecord(record)})


def update(**fields):
    content = encode_update(UPDATE)
    record = dict(content["result"]) | {k.replace("_", "-"): v for k, v in fields.items()}
    content["result"] = MetricRecord(record)
    return content


def test_what_is_sent_is_what_comes():
    assert decode_info(encode_info(INFO), CLASSES) == INFO
    least = ClientInfo("clinic", 1)
    assert decode_info(encode_info(least), CLASSES) == least
    got = decode_update(encode_update(UPDATE), "clinic", 3)
    assert (got.client_id, got.num_examples, got.noise_sigma) == ("clinic", 6, 0.25)
    assert (got.params == UPDATE.params).all()
    assert decode_loss(encode_loss(-0.5)) == -0.5


def test_the_ends_of_the_ranges():
    most = ClientInfo("x" * 100, 2**53, (0,) * 9 + (2**53,), 10**6, 1e100)
    assert decode_info(encode_info(most), CLASSES) == most
    assert decode_info(info(noise_sigma=0), CLASSES).noise_sigma == 0.0
    assert decode_info(info(label_histogram=[6]), CLASSES).label_histogram == (6,)
    assert decode_update(update(num_examples=2**53), "clinic", 3).num_examples == 2**53
    assert decode_update(update(noise_sigma=1e100), "clinic", 3).noise_sigma == 1e100
    assert [decode_loss(encode_loss(x)) for x in (-1e100, 1e100)] == [-1e100, 1e100]


def test_noise_that_is_not_named_is_none():
    content = encode_update(UPDATE)
    del content["result"]["noise-sigma"]
    assert decode_update(content, "clinic", 3).noise_sigma == 0.0


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"client_id": 3}, "client-id 3 is not a printable text"),
        ({"client_id": ""}, "client-id has 0 characters, not 1 to 100"),
        ({"client_id": "x" * 101}, "client-id has 101 characters"),
        ({"client_id": "a\nb"}, r"client-id 'a\nb' is not a printable text"),
        ({"client_id": "a\u202eb"}, r"client-id 'a\u202eb' is not a printable text"),
        ({"num_examples": 0}, "num-examples is 0, not 1 or more"),
        ({"num_examples": True}, "num-examples is True, not a whole number"),
        ({"num_examples": 2**53 + 1}, f"num-examples is {2**53 + 1}, more than {2**53}"),
        ({"num_examples": 10**5000}, "num-examples is a number of 16610 bits, more than"),
        ({"num_examples": 1.0}, "num-examples is 1.0, not a whole number"),
        ({"num_examples": nan}, "num-examples is nan, not a whole number"),
        ({"label_histogram": [7, -1]}, "label-histogram[1] is -1, not 0 or more"),
        ({"label_histogram": [nan, 6.0]}, "label-histogram[0] is nan, not a whole number"),
        ({"label_histogram": [True] * 6}, "label-histogram[0] is True, not a whole number"),
        ({"label_histogram": ["6"]}, "label-histogram[0] is '6', not a whole number"),
        ({"label_histogram": [0] * 10**6}, "has 1000000 classes, the task has 10"),
        ({"label_histogram": [2**53 + 1]}, "label-histogram[0] is 9007199254740993, more than"),
        ({"label_histogram": [1, 2]}, "label-histogram has 3 examples, num-examples is 6"),
        ({"label_histogram": []}, "label-histogram has 0 examples, num-examples is 6"),
        ({"label_histogram": 6}, "label-histogram is 6, not a list"),
        ({"label_histogram": "6"}, "label-histogram is '6', not a list"),
        ({"local_epochs": 0}, "local-epochs is 0, not 1 or more"),
        ({"local_epochs": 10**6 + 1}, "local-epochs is 1000001, more than 1000000"),
        ({"local_epochs": True}, "local-epochs is True, not a whole number"),
        ({"local_epochs": 2.5}, "local-epochs is 2.5, not a whole number"),
        ({"local_epochs": "x" * 999}, "local-epochs is 'xxxxxx"),
        ({"noise_sigma": -0.1}, "noise-sigma is -0.1, not 0 to 1e+100"),
        ({"noise_sigma": nan}, "noise-sigma is nan, not 0 to 1e+100"),
        ({"noise_sigma": inf}, "noise-sigma is inf, not 0 to 1e+100"),
        ({"noise_sigma": 1e101}, "noise-sigma is 1e+101, not 0 to 1e+100"),
        ({"noise_sigma": 10**5000}, "noise-sigma is a number of 16610 bits, not 0 to 1e+100"),
        ({"noise_sigma": "much"}, "noise-sigma is 'much', not a number"),
        ({"noise_sigma": False}, "noise-sigma is False, not a number"),
    ],
)
def test_who_a_client_cannot_be(fields, why):
    with pytest.raises(BadReplyError) as error:
        decode_info(info(**fields), CLASSES)
    assert why in str(error.value)
    assert len(str(error.value)) < 200
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"num_examples": 2**60}, "num-examples is 1152921504606846976, more than"),
        ({"num_examples": [1]}, "num-examples is [1], not a whole number"),
        ({"noise_sigma": nan}, "noise-sigma is nan, not 0 to 1e+100"),
        ({"noise_sigma": -1.0}, "noise-sigma is -1.0, not 0 to 1e+100"),
        ({"noise_sigma": [0.5]}, "noise-sigma is [0.5], not a number"),
    ],
)
def test_what_an_update_cannot_say(fields, why):
    with pytest.raises(BadReplyError) as error:
        decode_update(update(**fields), "clinic", 3)
    assert why in str(error.value)


@pytest.mark.parametrize("loss", [nan, inf, -inf, 1e101, [1.0], 10**400])
def test_what_is_no_loss(loss):
    with pytest.raises(BadReplyError, match="loss is "):
        decode_loss(RecordDict({"result": MetricRecord({"loss": loss})}))
    with pytest.raises(BadReplyError, match="loss is None, not a number"):
        decode_loss(RecordDict())


@pytest.mark.parametrize(
    "header",
    [
        b"{[]: 1}",
        b"{'descr': '<f4', 1: 2}",
        b"{" * 900,
        b"(" * 9000,
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"1," * 3000 + b")}",
        b"{'descr': [('\\x1b[2J', '<f4')], 'fortran_order': False, 'shape': (3,)}",
        b"{'descr': 3, 'fortran_order': 0, 'shape': None}",
        b"\xff\xfe\x00",
    ],
)
def test_a_header_of_anything_is_one_short_line(header):
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(12)
    content = encode_update(UPDATE)
    content["params"] = ArrayRecord({"params": Array("float32", (3,), "numpy.ndarray", data)})
    with pytest.raises(BadReplyError) as error:
        decode_update(content, "clinic", 3)
    assert len(str(error.value)) < 200
    assert str(error.value).isprintable()


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("\x1b[2Jgone", r"\x1b[2Jgone"),
        ("abc\u202efed", r"abc\u202efed"),
        ("two\r\n lines\u2028here", "two lines here"),
        ("bell\a zero\0", r"bell\x07 zero\x00"),
        ("half \ud800", r"half \ud800"),
        ("Zürich 北京 🙂", "Zürich 北京 🙂"),
        ("", "no reason given"),
        (" \n ", "no reason given"),
    ],
)
def test_a_reason_is_printable_once_it_is_in(reason, told):
    request = Message(RecordDict(), 1, "train")
    with pytest.raises(BadReplyError) as error:
        content_of(Message(Error(7, reason), reply_to=request))
    assert str(error.value) == f"{told} (error code 7)"


def test_printable_leaves_what_is():
    assert printable("a b|é\\x1b") == "a b|é\\x1b"
    assert printable("\t\u200f") == r"\t\u200f"


def test_a_tiny_noise_costs_no_run(small):
    """Its square is 0, by which the accountant would divide."""
    config = small.with_values(noise_sigma=1.0, clip_norm=1.0, privacy_delta=1e-4)
    path = run_with(config, train=lambda content: content["result"].update({"noise-sigma": 1e-300}))
    clients = json.loads((path / "summary.json").read_text())["clients"]
    assert {c["epsilon"] for c in clients if c["times_selected"]} == {None}


def test_a_strange_client_is_refused_and_the_run_can_be_read(small):
    path = run_with(
        small,
        query=lambda content: content["client"].update({"label-histogram": [-1, 10]}),
        node=2,
    )
    run = read_run(path)
    assert len(ledger_of(run).clients) == 5
    console = Console(width=200)
    with console.capture() as capture:
        console.print(status(path))
    assert "label-histogram[0] is -1, not 0 or more" in capture.get()
