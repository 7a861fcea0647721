"""The example of docs/concepts.md runs as it is written, and shows what the page says of it."""

import re
from pathlib import Path

import numpy as np

PAGE = Path(__file__).parents[1] / "docs" / "concepts.md"
LINE = re.compile(r"^(.+?)\s+(0\.\d+) \[(.+?)\] \[(.+?)\]$", re.MULTILINE)


def lines(text):
    """What a line is about -> accuracy, values and leave-one-out contributions."""
    return {
        what: (float(accuracy), *(np.array(row.split(), float) for row in rows))
        for what, accuracy, *rows in LINE.findall(text)
    }


def test_the_example(capsys):
    page = PAGE.read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(compile(code, str(PAGE), "exec"), {"__name__": "example"})
    found, written = lines(capsys.readouterr().out), lines(page)
    assert found.keys() == written.keys()
    assert len(found) == 3
    for what, (accuracy, values, without) in found.items():
        assert abs(accuracy - written[what][0]) < 0.05
        assert (np.sign(values) == np.sign(written[what][1])).all()
        assert values.argmin() == written[what][1].argmin()
        assert without.argmax() == written[what][2].argmax()
    everything, no_nine, left_out = found.values()
    assert everything[1].argmin() == everything[2].argmax() == 2  # undervalued
    assert no_nine[0] == everything[0]  # the same training, whoever validates
    assert no_nine[2][2] < 0 < everything[2][2]
    assert left_out[0] < everything[0]
