"""Loss and accuracy of a model."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from common.datasets import Dataset

#: Rows per forward pass. 500 images and their activations stay in a core's cache; one pass over
#: all 5,000 validation images is more than twice as slow for a small CNN.
CHUNK = 500


class Evaluation(NamedTuple):
    """Mean cross-entropy in nats, accuracy in 0..1, and the cross-entropy of each group."""

    loss: float
    accuracy: float
    by_group: tuple[float, ...] = ()  # (G,)


def evaluate(
    model: nn.Module, data: Dataset, chunk: int = CHUNK, members: Tensor | None = None
) -> Evaluation:
    """Evaluate without gradients, in cache-sized chunks; `members` as in `tally`, or no groups."""
    to_evaluation(model)
    if members is None:
        members = torch.zeros((len(data), 0), dtype=torch.float64, device=data.x.device)
    loss = torch.zeros((), dtype=torch.float64, device=data.x.device)
    correct = torch.zeros((), dtype=torch.int64, device=data.x.device)
    in_groups = torch.zeros(members.shape[1], dtype=torch.float64, device=data.x.device)
    # Not inference_mode: in it a network cannot differentiate for itself, as energies' do.
    with torch.no_grad():
        for start in range(0, len(data), chunk):
            part = slice(start, start + chunk)
            sums = tally(model(data.x[part]), data.y[part], members[part])
            loss += sums.loss
            correct += sums.hits
            in_groups += sums.in_groups
    by_group = tuple((in_groups / len(data)).tolist())
    return Evaluation(float(loss) / len(data), int(correct) / len(data), by_group)


def to_evaluation(model: nn.Module) -> None:
    """By way of training: what a network derives from its parameters then, it derives anew."""
    model.train()
    model.eval()


class Tally(NamedTuple):
    """Sums over examples: cross-entropies in nats, hits, and cross-entropies in each group."""

    loss: Tensor  # (…,) float64
    hits: Tensor  # (…,) int64
    in_groups: Tensor  # (…, G) float64


def tally(scores: Tensor, y: Tensor, members: Tensor) -> Tally:
    """Of class scores (…, n, classes); `members` (n, G) float64: what examples count in groups.

    Sums are float64, so that they hardly depend on how examples are cut into chunks. Scores of half
    precision are taken as float32, in which their losses have more than three digits.
    """
    scores = scores if scores.dtype == torch.float64 else scores.float()
    of_class = scores.gather(-1, y.expand(scores.shape[:-1])[..., None])[..., 0]
    losses = scores.logsumexp(dim=-1) - of_class
    hits = (scores.argmax(dim=-1) == y).sum(dim=-1)
    return Tally(losses.sum(dim=-1, dtype=torch.float64), hits, losses.double() @ members)
