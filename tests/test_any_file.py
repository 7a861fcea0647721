"""Whatever stands in the files of a run: readers read it, or say in one line what is wrong."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.errors import GreedyfedError
from tests.any_client import read_by_all
from tests.federation import run_with_a_failure

FILES = ["config.json", "history.jsonl", "summary.json", "events.jsonl"]
plain = (
    st.none()
    | st.booleans()
    | st.integers(-3, 10**20)
    | st.floats()
    | st.sampled_from(["", "[/x]", "a\x1b[2J", "\ud800", "x" * 5000, "-1"])
)
values = plain | st.lists(plain, max_size=3) | st.dictionaries(st.text(max_size=3), plain)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return run_with_a_failure(tmp_path_factory.mktemp("runs"))


def places(content, here=()):
    """The place of everything in a JSON value."""
    yield here
    items = content.items() if isinstance(content, dict) else ()
    items = enumerate(content) if isinstance(content, list) else items
    for key, each in items:
        yield from places(each, (*here, key))


def changed(content, place, value, name):
    """The value at a place replaced, left out, or under another name."""
    if not place:
        return value
    inner = content
    for key in place[:-1]:
        inner = inner[key]
    if name == "left out":
        del inner[place[-1]]
    elif name == "renamed" and isinstance(inner, dict):
        inner[str(value)] = inner.pop(place[-1])
    else:
        inner[place[-1]] = value
    return content


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    file=st.sampled_from(FILES),
    line=st.integers(0, 5),
    where=st.randoms(use_true_random=False),
    value=values,
    how=st.sampled_from(["replaced", "replaced", "left out", "renamed"]),
    ended=st.booleans(),
)
def test_any_change_of_a_file_is_read_or_named(made, file, line, where, value, how, ended):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(shutil.copytree(made, Path(folder) / made.name))
        text = (path / file).read_text()
        parts = [p for p in text.splitlines() if p] if file.endswith("l") else [text]
        line = min(line, len(parts) - 1)
        content = json.loads(parts[line])
        place = where.choice(list(places(content)))
        parts[line] = json.dumps(changed(content, place, value, how))
        (path / file).write_text("\n".join(parts) + "\n")
        if not ended:
            (path / "summary.json").unlink()
        try:
            told = read_by_all(path)
        except GreedyfedError as error:
            told = [str(error)]
            assert "\n" not in told[0]
        for text in told:
            assert all(c.isprintable() or c == "\n" for c in text)
