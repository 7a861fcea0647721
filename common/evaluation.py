"""Loss and accuracy of a model."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from common.datasets import Dataset

#: Rows per forward pass. 500 images and their activations stay in a core's cache; one pass over
#: all 5,000 validation images is more than twice as slow for a small CNN.
CHUNK = 500


class Evaluation(NamedTuple):
    """Mean cross-entropy in nats and accuracy in 0..1."""

    loss: float
    accuracy: float


def evaluate(model: nn.Module, data: Dataset, chunk: int = CHUNK) -> Evaluation:
    """Evaluate in inference mode, in cache-sized chunks."""
    model.eval()
    loss = torch.zeros((), dtype=torch.float64, device=data.x.device)
    correct = torch.zeros((), dtype=torch.int64, device=data.x.device)
    with torch.inference_mode():
        for start in range(0, len(data), chunk):
            part = slice(start, start + chunk)
            losses, hits = tally(model(data.x[part]), data.y[part])
            loss += losses
            correct += hits
    return Evaluation(float(loss) / len(data), int(correct) / len(data))


def tally(scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of cross-entropies in nats (…,) and number of hits (…,) of class scores (…, n, classes).

    Sums are float64, so that they hardly depend on how examples are cut into chunks.
    """
    of_class = scores.gather(-1, y.expand(scores.shape[:-1])[..., None])[..., 0]
    losses = scores.logsumexp(dim=-1) - of_class
    return losses.sum(dim=-1, dtype=torch.float64), (scores.argmax(dim=-1) == y).sum(dim=-1)
