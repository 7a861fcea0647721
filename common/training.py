"""What a client does with its data: local SGD, and noise on what it sends."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from common.config import TrainingConfig
from common.datasets import Dataset
from common.params import Vector
from common.seeding import global_generators


def local_sgd(
    model: nn.Module,
    data: Dataset,
    config: TrainingConfig,
    epochs: int,
    rng: np.random.Generator,
    batch_size: int = 0,
) -> float:
    """Train `model` in place (paper, ClientUpdate in Alg. 1); return the last epoch's mean loss.

    Each epoch shuffles the n examples and takes B batches of ⌊n/B⌋ of them, or of `batch_size`; if
    they are fewer than B batches need, it begins with the first ones again. Where n < 2B, batches
    are of two, which BatchNorm needs (the paper has n > 30). Momentum starts from zero. With μ > 0
    the objective has FedProx's proximal term μ/2 ‖w − w_t‖² (Li et al. 2020, eq. 2), whose
    gradient is μ (w − w_t). Of a network with several outputs in training (auxiliary heads) the
    first is trained on.

    Raises:
        TypeError: the network gives no class scores.
    """
    model.train()
    parameters = [p for p in model.parameters() if p.requires_grad]
    anchor = [p.detach().clone() for p in parameters] if config.proximal_mu else []
    # torch.optim computes the same, but loads torch's compiler first: 1.2 s in each new process.
    velocities = [torch.zeros_like(p) for p in parameters]
    n, batches = len(data), config.batches_per_epoch
    size = max(batch_size or n // batches or n, min(n, 2))
    loss_sum = torch.zeros((), device=data.x.device)
    cuda = [data.x.device] if data.x.is_cuda else []
    seed = int(rng.integers(2**63))
    # Dropout and the like draw from torch's generators, a network of one's own perhaps from others.
    with torch.random.fork_rng(devices=cuda), global_generators(seed):
        torch.default_generator.manual_seed(seed)
        if cuda:
            torch.cuda.manual_seed(int(rng.integers(2**63)))
        for _ in range(epochs):
            order = torch.from_numpy(rng.permutation(n)).to(data.x.device)
            order = order.repeat(-(-size * batches // n))
            loss_sum.zero_()
            for b in range(batches):
                rows = order[b * size : (b + 1) * size]
                for p in parameters:
                    p.grad = None
                loss = cross_entropy(scores_of(model(data.x[rows])), data.y[rows])
                loss.backward()  # type: ignore[no-untyped-call]
                with torch.no_grad():
                    for p, p0 in zip(parameters, anchor, strict=False):
                        if p.grad is not None:
                            if p.grad.is_sparse:  # of an embedding
                                p.grad = p.grad.to_dense()
                            p.grad.add_(p - p0, alpha=config.proximal_mu)
                    for p, velocity in zip(parameters, velocities, strict=True):
                        if p.grad is not None:
                            velocity.mul_(config.momentum).add_(p.grad)
                            p.add_(velocity, alpha=-config.learning_rate)
                loss_sum += loss.detach()
    return float(loss_sum) / batches


def scores_of(output: object) -> Tensor:
    """The class scores (n, classes) in what a network gives in training, as float32 or float64.

    Raises:
        TypeError: it gives none.
    """
    first = output[0] if isinstance(output, tuple | list) and output else output
    if not isinstance(first, Tensor) or not first.is_floating_point():
        kind = first.dtype if isinstance(first, Tensor) else type(first).__name__
        raise TypeError(f"the network gives {kind} in training, not class scores")
    return first if first.dtype == torch.float64 else first.float()


def clip_update(vector: Vector, start: Vector, norm: float) -> Vector:
    """`vector` (D,) moved towards `start` until their distance is at most `norm`; 0: as it is.

    Bounds a client's influence on a round, which noise alone does not (Abadi et al. 2016).
    """
    if norm == 0:
        return vector
    delta = vector - start
    length = float(np.linalg.norm(delta))
    if length <= norm:
        return vector
    clipped: Vector = start + delta * np.float32(norm / length)
    return clipped


def add_parameter_noise(vector: Vector, sigma: float, rng: np.random.Generator) -> Vector:
    """The vector (D,) with N(0, σ²) added to every entry (paper, Privacy Heterogeneity)."""
    with np.errstate(over="ignore"):  # the server refuses what is not finite
        return vector + (sigma * rng.standard_normal(vector.shape)).astype(np.float32)
