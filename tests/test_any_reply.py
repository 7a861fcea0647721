"""Whatever a client sends: the run ends with one line or none, and every reader can read it."""

import tempfile
from contextlib import suppress
from functools import partial

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.config import RunConfig
from common.errors import RunFailedError
from tests.any_client import read_by_all, run_with
from tests.federation import directory_of

integers = st.sampled_from([0, 1, -1, 45, 2**53, 2**53 + 1]) | st.integers(-(2**63), 2**63 - 1)
numbers = st.sampled_from([1e-300, 0.5, 1e100, 1e101, float("nan")]) | st.floats() | integers
texts = st.sampled_from(["[/x]", "=1+1", "a|b", "<b>", "\x1b[2J", "\u202ea"]) | st.text(max_size=20)
lists = (
    st.lists(integers, min_size=1, max_size=12)
    | st.lists(st.floats(), min_size=1, max_size=3)
    | st.lists(texts, max_size=3)
    | st.lists(st.booleans(), max_size=3)
    | st.just([1] * 10_000)
)
anything = texts | st.booleans() | st.binary(max_size=5) | numbers | lists
figures = numbers | st.lists(integers, max_size=3)
about = st.fixed_dictionaries(
    {},
    optional={
        "client-id": texts | anything,
        "num-examples": integers | anything,
        "label-histogram": lists | anything,
        "local-epochs": integers | anything,
        "noise-sigma": numbers | anything,
        "more": anything,
    },
)
result = st.fixed_dictionaries(
    {},
    optional={
        "num-examples": integers | figures,
        "noise-sigma": numbers | figures,
        "loss": numbers | figures,
        "more": figures,
    },
)
#: (record, its fields), (record, None) to leave it out, (record, a record of another kind).
odd = st.tuples(
    st.sampled_from(["client", "result", "params", "more"]),
    st.none() | st.sampled_from([ArrayRecord(), ConfigRecord(), MetricRecord()]),
)


def reply(record, fields):
    """Changes of an honest reply: fields of its record, and now and then a record as a whole."""
    whole = st.one_of(st.just([]), st.just([]), st.lists(odd, max_size=1))
    return st.tuples(fields.map(lambda f: (record, f)), whole).map(lambda t: [t[0], *t[1]])


def changed(honest, changes):
    for name, change in changes:
        if change is None:
            honest.pop(name, None)
        elif isinstance(change, dict):
            honest[name].update(change)
        else:
            honest[name] = change


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    query=reply("client", about),
    train=reply("result", result),
    evaluate=reply("result", result),
    algorithm=st.sampled_from(["greedyfed", "power-of-choice"]),
    one=st.booleans(),
)
def test_a_run_with_any_replies_can_be_read(query, train, evaluate, algorithm, one):
    with tempfile.TemporaryDirectory() as folder:
        keys = {"num-clients": 4, "clients-per-round": 2, "num-rounds": 3, "output-dir": folder}
        if algorithm == "greedyfed":
            keys |= {"clip-norm": 1.0, "privacy-delta": 1e-4}
        config = RunConfig.from_flat(keys | {"algorithm": algorithm})
        each = (partial(changed, changes=changes) for changes in (query, train, evaluate))
        with suppress(RunFailedError):  # all clients alike are of no use
            run_with(config, *each, node=1 if one else None)
        for text in read_by_all(directory_of(config)):
            assert all(c.isprintable() or c == "\n" for c in text)
