"""Loss and accuracy of a model."""

from typing import NamedTuple

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from common.datasets import Dataset

#: Rows per forward pass. 500 images and their activations stay in a core's cache; one pass over
#: all 5,000 validation images is more than twice as slow for a small CNN.
CHUNK = 500


class Evaluation(NamedTuple):
    """Mean cross-entropy in nats and accuracy in 0..1."""

    loss: float
    accuracy: float


def evaluate(model: nn.Module, data: Dataset) -> Evaluation:
    """Evaluate in inference mode, in cache-sized chunks."""
    model.eval()
    loss = torch.zeros((), dtype=torch.float64, device=data.x.device)
    correct = torch.zeros((), dtype=torch.int64, device=data.x.device)
    with torch.inference_mode():
        for start in range(0, len(data), CHUNK):
            y = data.y[start : start + CHUNK]
            scores = model(data.x[start : start + CHUNK])
            loss += cross_entropy(scores, y, reduction="sum")
            correct += (scores.argmax(dim=1) == y).sum()
    return Evaluation(float(loss) / len(data), int(correct) / len(data))
