"""Who was selected, what values tell, and what was learned of each class; from run directories."""

import numpy as np
import pytest
from typer.testing import CliRunner

from common.errors import GreedyfedError
from experiments.figures import Run, app, rank_correlation
from tests.federation import history_of, run


def test_the_share_and_the_accuracy_of_each_class(small):
    path = run(small)
    result = CliRunner().invoke(app, ["classes", str(path)])
    heading, _, selected, accuracy = result.stdout.splitlines()
    assert heading == "| | | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 | all |"
    shares = [float(text) for text in selected.split("|")[3:-2]]
    assert sum(shares) == pytest.approx(100, abs=5)  # rounded
    test_accuracy = history_of(path)[-1]["test_accuracy"]
    assert accuracy.split("|")[-2].strip() == f"{100 * test_accuracy:.1f}"
    by_class = Run(path).class_accuracy()
    assert min(by_class) <= 100 * test_accuracy <= max(by_class)


def test_class_accuracies_average_to_the_run_s(small):
    """Over as many examples as the test split has of each class."""
    from common.datasets import load_splits

    path, splits = run(small), load_splits(small.data, small.seed)
    count = np.bincount(splits.test.y)
    expected = 100 * history_of(path)[-1]["test_accuracy"]
    assert count @ Run(path).class_accuracy() / count.sum() == pytest.approx(expected)


def test_a_run_without_its_model_is_named(small):
    path = run(small)
    (path / "model.safetensors").unlink()
    with pytest.raises(GreedyfedError, match=r"model.safetensors: No such file.*run it again"):
        Run(path).class_accuracy()


@pytest.mark.parametrize("suffix", ["png", "svg"])
@pytest.mark.parametrize("command", ["selection", "values"])
def test_pictures(small, tmp_path, command, suffix):
    path, out = run(small.with_values(noise_sigma=0.05)), tmp_path / f"picture.{suffix}"
    result = CliRunner().invoke(app, [command, str(path), "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert out.stat().st_size > 5000


def test_rank_correlation_is_spearman_s():
    rng = np.random.default_rng(0)
    x = rng.normal(size=50)
    assert rank_correlation(x, np.exp(x)) == pytest.approx(1)
    assert rank_correlation(x, -(x**3)) == pytest.approx(-1)
    assert rank_correlation(np.array([1.0, 1, 2]), np.array([3.0, 3, 5])) == pytest.approx(1)
