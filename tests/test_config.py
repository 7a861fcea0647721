"""Every kind of configuration error: one line with the key, the value, the rule and a remedy."""

import tomllib
from pathlib import Path

import pytest

from common.config import KEYS, ConfigError, RunConfig

ROOT = Path(__file__).parents[1]
BAD = {
    "unknown key": ({"num-round": 3}, "num-round = 3: unknown key; did you mean 'num-rounds'?"),
    "underscore": ({"num_rounds": 3}, "did you mean 'num-rounds'?"),
    "nothing near": ({"zzz": 1}, "zzz = 1: unknown key; README.md lists the keys"),
    "text for int": ({"num-rounds": "three"}, 'num-rounds = "three": input should be a valid int'),
    "float for int": ({"num-rounds": 2.5}, "num-rounds = 2.5: input should be a valid integer"),
    "bool for int": ({"num-rounds": True}, "num-rounds = true: input should be a valid integer"),
    "int for bool": ({"resume": 1}, "resume = 1: input should be a valid boolean"),
    "int for text": ({"data-dir": 3}, "data-dir = 3: input should be a valid string"),
    "no rounds": ({"num-rounds": 0}, "num-rounds = 0: input should be greater than or equal to 1"),
    "alpha 0": ({"dirichlet-alpha": 0.0}, "dirichlet-alpha = 0.0: input should be greater than 0"),
    "alpha < 0": ({"dirichlet-alpha": -1.0}, "input should be greater than 0"),
    "nan": ({"learning-rate": float("nan")}, "input should be a finite number"),
    "inf": ({"noise-sigma": float("inf")}, "input should be a finite number"),
    "momentum 1": ({"momentum": 1.0}, "momentum = 1.0: input should be less than 1"),
    "fraction": ({"straggler-fraction": 1.5}, "input should be less than or equal to 1"),
    "algorithm": ({"algorithm": "sgd"}, "algorithm = \"sgd\": input should be 'greedyfed', 'greed"),
    "groups": ({"valuation-groups": "x"}, "input should be 'classes', 'column', 'clusters'"),
    "no clusters": ({"valuation-clusters": 0}, "valuation-clusters = 0: input should be greater"),
    "scheme": ({"partition": "x"}, "input should be 'dirichlet', 'dirichlet-float32' or 'iid'"),
    "dataset": ({"dataset": "imagenet"}, "dataset = \"imagenet\": input should be 'digits'"),
    "device": ({"device": "tpu"}, "device = \"tpu\": input should be 'cpu' or 'cuda'"),
    "seed < 0": ({"seed": -1}, "seed = -1: input should be greater than or equal to 0"),
    "M > N": (
        {"num-clients": 5, "clients-per-round": 6},
        "clients-per-round = 6: must be at most num-clients = 5; lower clients-per-round",
    ),
    "one client": (
        {"num-clients": 1, "clients-per-round": 1},
        "num-clients = 1: a federation has at least 2",
    ),
    "greedy without values": ({"valuation": "none"}, "selects by value; set valuation = 'auto'"),
    "exact of many": (
        {"valuation": "exact", "clients-per-round": 20},
        "clients-per-round = 20 must be at most 14; set valuation = 'auto'",
    ),
    "no data-dir": ({"dataset": "mnist"}, "data-dir = '': dataset = 'mnist' is read from files"),
    "own without data-dir": (
        {"dataset": "own"},
        "data-dir = '': dataset = 'own' is validated on the server's own data; set data-dir",
    ),
    "logger": (
        {"loggers": "tensorboard, wandb"},
        "loggers = 'tensorboard, wandb': 'wandb' is none of tensorboard, mlflow; name one of them",
    ),
    "no output": ({"output-dir": ""}, 'output-dir = "": string should have at least 1 character'),
}


@pytest.mark.parametrize("case", BAD)
def test_errors_name_key_value_rule_and_remedy(case):
    flat, expected = BAD[case]
    with pytest.raises(ConfigError) as error:
        RunConfig.from_flat(flat)
    (line,) = str(error.value).splitlines()
    assert expected in line
    assert ";" in line  # the remedy follows


def test_all_wrong_keys_are_told_at_once():
    with pytest.raises(ConfigError) as error:
        RunConfig.from_flat({"num-rounds": 0, "momentum": 2.0, "sead": 1})
    assert len(str(error.value).splitlines()) == 3


def test_flat_and_back():
    flat = RunConfig().to_flat()
    assert list(flat) == list(KEYS)
    assert RunConfig.from_flat(flat) == RunConfig()


def test_the_app_declares_every_key_with_the_same_default():
    """Flower refuses keys that pyproject.toml lacks, and takes its defaults from there."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert declared == RunConfig().to_flat()
    assert {k: type(v) for k, v in declared.items()} == {
        k: type(v) for k, v in RunConfig().to_flat().items()
    }


def test_the_readme_lists_every_key_with_its_default():
    rows = [
        line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| `")
    ]
    listed = {row.split("`")[1]: row for row in rows}
    for key, (_, field) in KEYS.items():
        default = field.default
        shown = str(default).lower() if isinstance(default, bool) else str(default) or "(empty)"
        expected = f"| `{key}` | {shown} | {field.description} |"
        assert listed.get(key) == expected, f"README.md should have the row\n{expected}"


@pytest.mark.parametrize(
    ("key", "value", "same"),
    [
        ("seed", 1, False),
        ("learning-rate", 0.02, False),
        ("num-clients", 7, False),
        ("output-dir", "elsewhere", True),
        ("data-dir", "elsewhere", True),
        ("resume", True, True),
        ("loggers", "tensorboard", True),
    ],
)
def test_the_run_id_depends_on_what_changes_a_number(key, value, same):
    base = RunConfig.from_flat({"num-clients": 8})
    other = RunConfig.from_flat(base.to_flat() | {key: value})
    assert (base.run_id == other.run_id) == same


def test_the_run_id_depends_on_where_own_data_lies():
    own = [RunConfig.from_flat({"dataset": "own", "data-dir": d}) for d in ("a.npz", "b.npz")]
    assert own[0].run_id != own[1].run_id


@pytest.mark.parametrize("character", ["\n", "\r", "\t", "\0", "\x1b", "\x7f", "\x85", "\u2028"])
@pytest.mark.parametrize("key", ["output-dir", "data-dir", "model", "loggers"])
def test_texts_have_no_control_characters(key, character):
    for text in (f"a{character}b", f"a{character}"):
        with pytest.raises(ConfigError) as error:
            RunConfig.from_flat({key: text})
        line = str(error.value).splitlines()[0]
        assert line.startswith(f'{key} = "a\\'), line
        assert "must be one line of text without control characters; correct it" in line
        assert str(error.value).isascii()
        assert all(c.isprintable() or c == "\n" for c in str(error.value))
    assert RunConfig.from_flat({"output-dir": "Läufe 1\u3000"}).output_dir == "Läufe 1\u3000"
