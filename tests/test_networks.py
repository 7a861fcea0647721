"""The network that is trained, valued and saved is the user's, or it is refused before a run."""

import inspect
import logging
import sys

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import nn
from torch.nn.utils import parametrizations

from client_app.app import app as client_app
from common.config import RunConfig
from common.datasets import load_splits
from common.models import ModelError, build_model
from common.params import ParamSpec
from experiments.local_grid import run_in_process
from server_app.app import app as server_app
from server_app.app import server_model
from server_app.run_directory import RunDirectoryError
from server_app.server_model import ServerModel
from server_app.strategy import RoundError
from tests import networks
from tests.bad_networks import REFUSED
from tests.conftest import DATA, REQUIRED
from tests.federation import directory_of, history_of, run
from tests.networks import (
    WORK,
    Doubled,
    Net,
    check_against_plain,
    config_for,
    mlp,
    new_network,
    plain_loss,
    recorded,
)

CASES = DATA.parent / "cases"
GROUPED = {
    *("mlp", "shared activation", "batch norm", "batch norm without momentum", "dropout"),
    *("in place", "lazy", "frozen first layer", "frozen bias", "one linear layer"),
    *("numbers of numpy", "hook on a gradient"),
}


@pytest.fixture
def choose(monkeypatch):
    return lambda factory: monkeypatch.setattr(networks, "chosen", factory)


@pytest.fixture
def told():
    """The lines of the server's log, whoever else reads it."""
    lines = list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    log = logging.getLogger("greedyfed")
    log.addHandler(handler)
    before = log.level
    log.setLevel(logging.INFO)
    yield lines
    log.removeHandler(handler)
    log.setLevel(before)


@pytest.mark.parametrize("name", WORK)
def test_a_run_records_what_plain_pytorch_says_of_the_saved_model(name, choose, tmp_path, told):
    choose(WORK[name])
    check_against_plain(config_for(tmp_path))
    text = "\n".join(told)
    once = text.count("coalitions are evaluated one after the other, as")
    assert once == (name not in GROUPED)
    assert ("gives probabilities" in text) == (name == "probabilities")
    assert ("several outputs in training" in text) == (name == "outputs for training")


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_right_is_refused_before_a_run_begins(name, choose, tmp_path):
    factory, words = REFUSED[name]
    choose(factory)
    with pytest.raises(ModelError) as error:
        recorded(config_for(tmp_path / "runs"))
    (line,) = str(error.value).splitlines()
    assert line.startswith("model = 'tests.networks:factory': ")
    assert words in line
    assert "; " in line
    assert not (tmp_path / "runs").exists()


def cases():
    if not (CASES / "nets.py").exists():
        return []
    sys.path.insert(0, str(CASES))
    import nets

    return [n for n, f in vars(nets).items() if inspect.isfunction(f) and f.__module__ == "nets"]


def test_the_shared_cases_are_here_where_they_must_be():
    assert cases() or not REQUIRED


@pytest.mark.parametrize("name", cases())
def test_the_shared_cases(name, tmp_path):
    config = config_for(tmp_path / "runs", model=f"nets:{name}", noise_sigma=0.05)
    if name != "dicted":
        check_against_plain(config)
        return
    with pytest.raises(ModelError, match="gives dict in evaluation"):
        recorded(config)
    assert not (tmp_path / "runs").exists()


# ---- networks drawn at random ----------------------------------------------------------------


def _activation(draw):
    kinds = nn.ReLU, nn.Tanh, nn.GELU, nn.Hardtanh, nn.Softplus
    return draw(st.sampled_from(kinds))()


def _piece(draw, shared):
    """One layer, or a few, from 12 features to 12."""
    kind = draw(st.integers(0, 11))
    if kind == 0:
        return shared[draw(st.integers(0, 1))]
    if kind == 1:
        return nn.Linear(12, 12, bias=draw(st.booleans()))
    if kind == 2:
        return draw(st.sampled_from([nn.BatchNorm1d, nn.LayerNorm]))(12)
    if kind == 3:
        return Doubled(nn.Linear(12, 12), _activation(draw))
    if kind == 4:
        layer = nn.Linear(12, 12)
        layer.register_forward_pre_hook(lambda layer, given: (given[0] * 0.5,))
        return layer
    if kind == 5:
        return parametrizations.weight_norm(nn.Linear(12, 12))
    if kind == 6:
        return nn.Linear(12, 12).requires_grad_(False)
    if kind == 7:
        return nn.Sequential(*(_piece(draw, shared) for _ in range(draw(st.integers(0, 2)))))
    if kind == 8:
        return Residual(_piece(draw, shared))
    if kind == 9:
        return nn.Dropout(0.2)
    if kind == 10:
        return Cast(draw)
    return _activation(draw)


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + 0.5 * self.inner(x)


class Cast(nn.Module):
    def __init__(self, draw):
        super().__init__()
        self.dtype = draw(st.sampled_from([torch.float64, torch.bfloat16]))
        self.inner = nn.Linear(12, 12, dtype=self.dtype)

    def forward(self, x):
        return self.inner(x.to(self.dtype)).to(x.dtype)


class Recipe:
    """Draws once, and builds the same structure each time that it is called."""

    def __init__(self, data):
        self.data, self.drawn = data, []

    def __call__(self, shape, k):
        replay = iter(list(self.drawn))

        def draw(strategy):
            try:
                return next(replay)
            except StopIteration:
                self.drawn.append(self.data.draw(strategy))
                return self.drawn[-1]

        shared = nn.Linear(12, 12), nn.ReLU()
        pieces = [_piece(draw, shared) for _ in range(draw(st.integers(0, 5)))]
        if draw(st.booleans()):
            return mlp(shape, k, *pieces)
        return Net(shape, k, lambda net, x: net.inner(x), inner=nn.Sequential(*pieces))


@given(data=st.data(), sigma=st.sampled_from([0.0, 0.05, 0.3]))
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_random_networks(data, sigma, choose, tmp_path_factory):
    choose(Recipe(data))
    folder = tmp_path_factory.mktemp("run")
    check_against_plain(config_for(folder, noise_sigma=sigma, num_rounds=2))


# ---- what travels ----------------------------------------------------------------------------


def test_frozen_tensors_and_constants_neither_travel_nor_get_noise(choose, tmp_path):
    choose(WORK["frozen first layer"])
    config = config_for(tmp_path, noise_sigma=0.5)
    directory, _, spec = check_against_plain(config)
    new, saved = new_network(config).state_dict(), load_file(directory / "model.safetensors")
    for name in ("1.weight", "1.bias"):
        assert torch.equal(saved[name], new[name])
        assert name not in {entry[0] for entry in spec.entries}
    assert not torch.equal(saved["4.weight"], new["4.weight"])


def test_tied_weights_travel_once(choose, tmp_path):
    choose(WORK["tied weights"])
    directory, _, spec = check_against_plain(config_for(tmp_path, noise_sigma=0.5))
    names = [entry[0] for entry in spec.entries]
    assert "2.weight" in names
    assert "4.weight" not in names
    saved = load_file(directory / "model.safetensors")
    assert torch.equal(saved["2.weight"], saved["4.weight"])


@pytest.mark.parametrize("kind", ["complex", "float64", "bfloat16"])
def test_parameters_of_every_type_are_trained(kind, choose, tmp_path):
    choose(WORK[kind])
    config = config_for(tmp_path)
    directory, _, spec = check_against_plain(config)
    new, saved = new_network(config).state_dict(), load_file(directory / "model.safetensors")
    for name, _, _ in spec.entries:
        assert saved[name].dtype == new[name].dtype
        assert not torch.equal(saved[name], new[name])


@pytest.mark.parametrize("name", ["batch norm", "statistic of its own"])
@pytest.mark.parametrize("sigma", [0.05, 1.0])
def test_what_must_be_positive_stays_so_under_noise(name, sigma, choose, tmp_path):
    choose(WORK[name])
    config = config_for(tmp_path, noise_sigma=sigma, num_rounds=10, clip_norm=5.0)
    directory, rounds, spec = check_against_plain(config)
    traits = server_model(config).task.network
    (positive,) = traits.positive
    assert positive.endswith(("running_var", "second_moment"))
    (place,) = [slice(start, end) for n, start, end in spec.entries if n == positive]
    assert all((update[place] >= 0).all() for _, updates in rounds for update, _ in updates)
    assert (load_file(directory / "model.safetensors")[positive] >= 0).all()


def test_another_network_than_the_server_s_is_refused(choose):
    def built(name):
        choose(WORK[name])
        return build_model("tests.networks:factory", (1, 8, 8), 10, 0)

    mine, other = built("frozen first layer"), built("mlp")
    choose(WORK["frozen first layer"])
    traits = server_model(config_for("unused")).task.network
    traits.check(mine, ParamSpec.of(mine), "m")
    with pytest.raises(ModelError, match="other tensors than the server's"):
        traits.check(other, ParamSpec.of(other), "m")
    with torch.no_grad():
        mine[1].weight.add_(1e-7)  # as another processor's generator may
        traits.check(mine, ParamSpec.of(mine), "m")
        mine[1].weight.mul_(1.1)
    with pytest.raises(ModelError, match="frozen or constant tensors here have other numbers"):
        traits.check(mine, ParamSpec.of(mine), "m")


def test_a_buffer_that_moves_later_than_it_was_tried_is_not_lost_silently(choose, tmp_path):
    """Each client says so in place of an update."""
    choose(lambda s, k: mlp(s, k, Late()))
    with pytest.raises(RoundError, match=r"training changes '2\.late', which it left alone when"):
        run(config_for(tmp_path))


class Late(nn.Module):
    """Changes its buffer after 20 steps of training."""

    steps = 0

    def __init__(self):
        super().__init__()
        self.register_buffer("late", torch.ones(()))

    def forward(self, x):
        self.steps += self.training
        if self.steps > 20:
            self.late.mul_(0.9)
        return x * self.late


def test_a_parameter_that_is_trained_later_than_it_was_tried_is_not_lost_silently(choose, tmp_path):
    choose(lambda s, k: Thaws(s, k, lambda net, x: x.relu()))
    with pytest.raises(RoundError, match=r"training changes which parameters are trained, which"):
        run(config_for(tmp_path))


class Thaws(Net):
    """Trains its first layer too after 20 steps."""

    steps = 0

    def __init__(self, *args):
        super().__init__(*args)
        self.inp.requires_grad_(False)

    def forward(self, x):
        self.steps += self.training
        self.inp.requires_grad_(self.steps > 20)
        return super().forward(x)


@pytest.mark.parametrize("name", ["noise of numpy in training", "noise of random in training"])
def test_the_seed_makes_the_run_whatever_generator_a_network_draws_from(name, choose, tmp_path):
    choose(WORK[name])
    models = [
        (run(config_for(tmp_path / folder)) / "model.safetensors").read_bytes() for folder in "ab"
    ]
    assert models[0] == models[1]


def test_a_run_does_not_go_on_with_another_network(choose, tmp_path):
    """Of the same tensors, so that nothing but what it scores tells."""
    choose(lambda s, k: mlp(s, k, nn.ReLU()))
    run(config_for(tmp_path))
    choose(lambda s, k: mlp(s, k, nn.Tanh()))
    with pytest.raises(RunDirectoryError, match=r"the code of model = .* or the server's data ch"):
        run(config_for(tmp_path, num_rounds=5, resume=True))


def test_a_factory_may_draw_from_any_global_generator(choose):
    choose(WORK["numbers of numpy"])
    before = np.random.get_state()[1].tolist()
    first, second = (build_model("tests.networks:factory", (1, 8, 8), 10, 0) for _ in range(2))
    assert torch.equal(first[1].weight, second[1].weight)
    assert np.random.get_state()[1].tolist() == before


@pytest.mark.parametrize(
    ("name", "words"),
    [("lazy", "has lazy layers without shapes yet"), ("old weight norm", "cannot be copied")],
)
def test_a_network_that_cannot_be_copied_needs_its_factory(name, words):
    factory = WORK[name]
    splits = load_splits(config_for("unused").data, 0)
    with pytest.raises(ModelError, match=words):
        ServerModel(factory((1, 8, 8), 10), splits.val, splits.test, 10)


# ---- whole-number inputs, and clients with few examples --------------------------------------


class Bag(nn.Module):
    """The mean of the embeddings of words."""

    def __init__(self, classes, words=50, **keys):
        super().__init__()
        self.words, self.out = nn.Embedding(words, 8, **keys), nn.Linear(8, classes)

    def forward(self, x):
        return self.out(self.words(x).mean(1))


def federation(folder, sizes, x_of, **keys):
    """A server and clients with files of their own; the configuration and the nodes."""
    rng = np.random.default_rng(0)
    for name, n in {"server": 60, **{f"client-{k}": n for k, n in enumerate(sizes)}}.items():
        y = np.arange(n) % 2
        np.savez(folder / f"{name}.npz", x=x_of(rng, y), y=y)
    paths = {"data-dir": str(folder / "server.npz"), "output-dir": str(folder / "runs")}
    flat = {"dataset": "own", "num-rounds": 3, "clients-per-round": 2, "learning-rate": 0.5}
    flat |= {"model": "tests.networks:factory"} | paths
    flat |= {key.replace("_", "-"): value for key, value in keys.items()}
    nodes = [
        {"data-path": str(folder / f"client-{k}.npz"), "client-id": f"c{k}"}
        for k in range(len(sizes))
    ]
    return RunConfig.from_flat(flat), nodes


def tokens(rng, y):
    return rng.integers(0, 25, (len(y), 12)) + 25 * y[:, None]


def vectors(rng, y):
    return (rng.normal(size=(len(y), 4)) + y[:, None]).astype(np.float32)


@pytest.mark.parametrize("mu", [0.0, 0.1])
@pytest.mark.parametrize("keys", [{}, {"sparse": True}, {"padding_idx": 0}])
def test_ids_are_embedded(keys, mu, choose, tmp_path):
    choose(lambda s, k: Bag(k, **keys))
    config, nodes = federation(tmp_path, (20, 30, 40), tokens, num_rounds=8, proximal_mu=mu)
    run_in_process(server_app, client_app, config.to_flat(), nodes)
    record = history_of(directory_of(config))[-1]
    saved = Bag(2, **keys)
    saved.load_state_dict(load_file(directory_of(config) / "model.safetensors"))
    splits = load_splits(config.data, config.seed)
    assert splits.val.x.dtype == torch.int64
    loss, accuracy = plain_loss(saved, splits.val)
    assert record["val_loss"] == pytest.approx(loss, abs=1e-5)
    assert record["val_accuracy"] == pytest.approx(accuracy)
    assert accuracy > 0.9


@pytest.mark.parametrize("name", ["auto", "mlp", "logistic"])
def test_no_built_in_model_takes_ids(name, tmp_path):
    config, nodes = federation(tmp_path, (20, 30), tokens, model=name)
    with pytest.raises(ModelError, match="inputs are whole numbers, and the built-in models take"):
        run_in_process(server_app, client_app, config.to_flat(), nodes)
    assert not (tmp_path / "runs").exists()


def test_ids_beyond_the_embedding_keep_that_client_out(choose, tmp_path, told):
    choose(lambda s, k: Bag(k))
    config, nodes = federation(tmp_path, (20, 30, 40), tokens)
    np.savez(tmp_path / "client-1.npz", x=np.full((8, 12), 50), y=np.arange(8) % 2)
    run_in_process(server_app, client_app, config.to_flat(), nodes)
    (line,) = {line for line in told if "not used" in line}  # it is asked again later
    assert "IndexError: index out of range" in line
    asked = {client for record in history_of(directory_of(config)) for client in record["cohort"]}
    assert asked == {"c0", "c2"}


@pytest.mark.parametrize("with_norm", [False, True])
def test_clients_with_fewer_examples_than_a_batch(with_norm, choose, tmp_path, told):
    """All train, but for one example where BatchNorm needs two."""

    def network(shape, k):
        norm = [nn.BatchNorm1d(12)] if with_norm else []
        return nn.Sequential(nn.Linear(4, 12), *norm, nn.ReLU(), nn.Linear(12, k))

    choose(network)
    config, nodes = federation(tmp_path, (1, 2, 3, 7, 9), vectors, num_rounds=5)
    run_in_process(server_app, client_app, config.to_flat(), nodes)
    history = history_of(directory_of(config))
    assert not any(record["failures"] for record in history)
    asked = {client for record in history for client in record["cohort"]}
    assert asked == {"c0", "c1", "c2", "c3", "c4"} - ({"c0"} if with_norm else set())
    lines = {line for line in told if "not used" in line}  # it is asked again later
    assert len(lines) == with_norm
    assert all("one example may be too few for it (BatchNorm needs two)" in line for line in lines)
