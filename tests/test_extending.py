"""The example of docs/extending.md runs as it is written."""

import re
from pathlib import Path

import numpy as np

PAGE = Path(__file__).parents[1] / "docs" / "extending.md"


def test_the_example(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names = {"__name__": "example"}
    exec(compile(code, str(PAGE), "exec"), names)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [str(t) for t in range(1, 11)]
    state = names["state"]
    assert state.round == 10
    assert (state.stats.count > 0).all()  # the round robin
    assert len(np.unique(state.stats.value)) == 10
    assert float(lines[-1].split()[-1]) > float(lines[0].split()[-1])
