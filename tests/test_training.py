"""Local SGD against plain arithmetic, and the model's state as a vector."""

from itertools import chain

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from common.config import TrainingConfig
from common.datasets import Dataset
from common.evaluation import evaluate
from common.models import ModelError, build_model
from common.params import ParamSpec
from common.training import add_parameter_noise, clip_update, local_sgd


def data(n=23, features=6, classes=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, features, generator=generator)
    return Dataset(x, torch.randint(0, classes, (n,), generator=generator))


def trained(config, epochs=1, n=23, seed=0):
    model = build_model("logistic", (6,), 3, seed=1)
    loss = local_sgd(model, data(n), config, epochs, np.random.default_rng(seed))
    return model, loss


def test_one_full_batch_is_one_gradient_step():
    config = TrainingConfig(batches_per_epoch=1, learning_rate=0.3)
    model, _ = trained(config)
    start = build_model("logistic", (6,), 3, seed=1)
    loss = cross_entropy(start(data().x), data().y)
    loss.backward()
    for new, old in zip(model.parameters(), start.parameters(), strict=True):
        torch.testing.assert_close(new, old - 0.3 * old.grad)


@pytest.mark.parametrize("mu", [0.01, 1.0, 10.0])
def test_the_proximal_gradient_is_mu_times_the_distance(mu):
    """Two full-batch steps without momentum, against the gradients written out."""
    rate = 0.05
    config = TrainingConfig(batches_per_epoch=1, learning_rate=rate, momentum=0.0, proximal_mu=mu)
    model, _ = trained(config, epochs=2)
    start = build_model("logistic", (6,), 3, seed=1)
    w0, b0 = (p.detach().double() for p in start.parameters())
    x, y = data().x.double(), torch.nn.functional.one_hot(data().y).double()
    w, b = w0.clone(), b0.clone()
    for _ in range(2):
        residual = (torch.softmax(x @ w.T + b, dim=1) - y) / len(x)
        w = w - rate * (residual.T @ x + mu * (w - w0))
        b = b - rate * (residual.sum(dim=0) + mu * (b - b0))
    new_w, new_b = (p.detach().double() for p in model.parameters())
    torch.testing.assert_close(new_w, w, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(new_b, b, atol=1e-5, rtol=1e-5)


def test_momentum_accumulates():
    config = TrainingConfig(batches_per_epoch=1, learning_rate=0.1, momentum=0.5)
    model, _ = trained(config, epochs=3)
    start = build_model("logistic", (6,), 3, seed=1)
    velocity = [torch.zeros_like(p) for p in start.parameters()]
    for _ in range(3):
        grads = torch.autograd.grad(
            cross_entropy(start(data().x), data().y), list(start.parameters())
        )
        with torch.no_grad():
            for p, v, g in zip(start.parameters(), velocity, grads, strict=True):
                v.mul_(0.5).add_(g)
                p.sub_(0.1 * v)
    for new, old in zip(model.parameters(), start.parameters(), strict=True):
        torch.testing.assert_close(new, old)


class Recorder(nn.Module):
    """Notes which examples each batch holds; their number is the input."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.batches: list[list[int]] = []

    def forward(self, x):
        self.batches.append(x[:, 0].int().tolist())
        return self.weight.expand(len(x), 2)


@pytest.mark.parametrize(("n", "batches", "size"), [(23, 5, 4), (10, 5, 2), (20, 1, 20)])
def test_each_epoch_shuffles_into_b_batches(n, batches, size):
    model = Recorder()
    examples = Dataset(torch.arange(n).float().unsqueeze(1), torch.zeros(n, dtype=torch.int64))
    local_sgd(
        model, examples, TrainingConfig(batches_per_epoch=batches), 3, np.random.default_rng(0)
    )
    assert [len(b) for b in model.batches] == [size] * (3 * batches)
    seen = list(chain.from_iterable(model.batches))
    epochs = [seen[i * batches * size : (i + 1) * batches * size] for i in range(3)]
    assert all(len(set(epoch)) == batches * size for epoch in epochs)
    assert n < 20 or len({tuple(epoch) for epoch in epochs}) == 3


@pytest.mark.parametrize("n", [5, 6, 9])
def test_batches_have_at_least_two_examples(n):
    """Of one, BatchNorm knows no variance."""
    model = Recorder()
    examples = Dataset(torch.arange(n).float().unsqueeze(1), torch.zeros(n, dtype=torch.int64))
    local_sgd(model, examples, TrainingConfig(batches_per_epoch=5), 1, np.random.default_rng(0))
    assert [len(set(b)) for b in model.batches] == [2] * 5
    assert set(chain.from_iterable(model.batches)) == set(range(n))


def test_fewer_examples_than_batches_makes_every_batch_all_of_them():
    model = Recorder()
    examples = Dataset(torch.arange(3).float().unsqueeze(1), torch.zeros(3, dtype=torch.int64))
    local_sgd(model, examples, TrainingConfig(batches_per_epoch=5), 1, np.random.default_rng(0))
    assert [sorted(b) for b in model.batches] == [[0, 1, 2]] * 5


def test_training_depends_on_its_generator_alone():
    torch.manual_seed(1)
    config = TrainingConfig()
    a, _ = trained(config, seed=5)
    torch.manual_seed(2)
    state = torch.random.get_rng_state()
    b, _ = trained(config, seed=5)
    c, _ = trained(config, seed=6)
    assert torch.equal(torch.random.get_rng_state(), state)
    spec = ParamSpec.of(a)
    assert (spec.flatten(a) == spec.flatten(b)).all()
    assert (spec.flatten(a) != spec.flatten(c)).any()


@pytest.mark.parametrize(("norm", "expected"), [(0.0, 5.0), (10.0, 5.0), (5.0, 5.0), (2.0, 2.0)])
def test_an_update_is_clipped_to_its_norm(norm, expected):
    start = np.array([1.0, 1.0, 1.0], np.float32)
    vector = start + np.array([3.0, 0.0, 4.0], np.float32)
    clipped = clip_update(vector, start, norm)
    assert clipped.dtype == np.float32
    assert np.linalg.norm(clipped - start) == pytest.approx(expected)
    np.testing.assert_allclose((clipped - start) / expected, (vector - start) / 5, rtol=1e-6)


def test_noise_has_the_asked_spread():
    vector = np.ones(100_000, np.float32)
    noisy = add_parameter_noise(vector, 0.05, np.random.default_rng(0))
    assert noisy.dtype == np.float32
    assert (noisy - vector).std() == pytest.approx(0.05, rel=0.02)


def with_batch_norm():
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def test_integer_buffers_stay_out_of_the_vector():
    model = with_batch_norm()
    spec = ParamSpec.of(model)
    assert not spec.complete
    assert ParamSpec.of(nn.Linear(2, 2)).complete
    assert spec.size == 6 * 4 + 4 + 4 * 4 + 4 * 3 + 3  # weights, and BatchNorm's running statistics
    local_sgd(model, data(), TrainingConfig(), 2, np.random.default_rng(0))
    other = with_batch_norm()
    spec.load(other, spec.flatten(model))
    assert int(other[1].num_batches_tracked) == 0
    torch.testing.assert_close(other[1].running_mean, model[1].running_mean)
    assert evaluate(other, data()) == evaluate(model, data())


@pytest.mark.parametrize(
    ("name", "shape", "size"),
    [
        ("mlp", (1, 28, 28), 784 * 50 + 50 + 50 * 25 + 25 + 25 * 10 + 10),
        ("auto", (1, 28, 28), 784 * 50 + 50 + 50 * 25 + 25 + 25 * 10 + 10),
        ("cnn", (3, 32, 32), 8 * 3 * 16 + 8 + 8 * 8 * 16 + 8 + 392 * 10 + 10),
        ("auto", (3, 32, 32), 8 * 3 * 16 + 8 + 8 * 8 * 16 + 8 + 392 * 10 + 10),
        ("auto", (60,), 610),
        ("tests.test_training:small_net", (2, 3), 70),
    ],
)
def test_models_have_the_papers_sizes(name, shape, size):
    model = build_model(name, shape, 10, seed=0)
    assert ParamSpec.of(model).size == size
    assert model(torch.zeros(4, *shape)).shape == (4, 10)


N_CLASSES = 7


def raises(input_shape, num_classes):
    raise ValueError("no such layer")


def small_net(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(6, num_classes))


def test_the_seed_makes_the_model():
    flat = [ParamSpec.of(m).flatten(m) for m in (build_model("mlp", (4,), 3, s) for s in (0, 0, 1))]
    assert (flat[0] == flat[1]).all()
    assert (flat[0] != flat[2]).any()


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("resnet", (4,), "model = 'resnet': unknown; use auto, mlp, cnn, logistic or"),
        ("nowhere:net", (4,), "model = 'nowhere:net': cannot be imported: No module named"),
        ("tests.test_training:nothing", (4,), "cannot be imported"),
        ("builtins:print", (4,), "returned NoneType, not a torch.nn.Module"),
        ("tests.test_training:raises", (4,), "ValueError: no such layer; correct the factory"),
        ("os:getcwd", (4,), "raised TypeError"),
        ("tests.test_training:N_CLASSES", (4,), "raised TypeError: 'int' object is not callable"),
        ("cnn", (4,), "needs images (channels, height, width)"),
        ("cnn", (1, 2, 2), "too small for it"),
    ],
)
def test_model_errors_say_what_is_wrong(name, shape, words):
    with pytest.raises(ModelError) as error:
        build_model(name, shape, 3, seed=0)
    assert words in str(error.value)


@pytest.mark.parametrize("n", [1, 499, 500, 501, 1234])
def test_evaluation_in_chunks_equals_one_pass(n):
    model, examples = build_model("mlp", (6,), 3, seed=0), data(n)
    scores = model(examples.x).detach()
    result = evaluate(model, examples)
    assert result.loss == pytest.approx(float(cross_entropy(scores, examples.y)), rel=1e-5)
    assert result.accuracy == pytest.approx(float((scores.argmax(1) == examples.y).float().mean()))
