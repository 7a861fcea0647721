"""The paper's models, and the user's own by `package.module:factory`."""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from common.errors import GreedyfedError, one_line
from common.seeding import Stream, global_generators, rng_for


class ModelError(GreedyfedError):
    """A model cannot be built."""


def _mlp(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Hidden layers of 50 and 25 units (paper, MNIST: 784-50-25-10)."""
    size = int(torch.Size(input_shape).numel())
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(size, 50),
        nn.ReLU(),
        nn.Linear(50, 25),
        nn.ReLU(),
        nn.Linear(25, num_classes),
    )


def _cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two convolutions of 8 channels, kernel 4 (paper, CIFAR-10: linear 392→10)."""
    if len(input_shape) != 3:
        raise ModelError(
            f"model = 'cnn': needs images (channels, height, width), the data has shape "
            f"{input_shape}; set model = 'mlp'"
        )
    features = nn.Sequential(
        nn.Conv2d(input_shape[0], 8, kernel_size=4, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, kernel_size=4, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )
    try:
        size = features(torch.zeros(1, *input_shape)).shape[1]
    except RuntimeError as error:
        raise ModelError(
            f"model = 'cnn': images of {input_shape} are too small for it; set model = 'mlp'"
        ) from error
    return nn.Sequential(*features, nn.Linear(size, num_classes))


def _logistic(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Multinomial logistic regression (Li et al. 2020, for Synthetic(α, β))."""
    return nn.Sequential(nn.Flatten(), nn.Linear(int(torch.Size(input_shape).numel()), num_classes))


_BUILT_IN = {"mlp": _mlp, "cnn": _cnn, "logistic": _logistic}


def build_model(
    name: str, input_shape: tuple[int, ...], num_classes: int, seed: int, whole: bool = False
) -> nn.Module:
    """A new model with seeded initial parameters; the global generators are left as they were.

    `auto` is `cnn` for colour images, `logistic` for vectors and `mlp` else. Any other name is
    `package.module:factory`; the factory is called as factory(input_shape, num_classes). Lazy
    layers get their shapes from two examples of zeros.

    Args:
        whole: the inputs are whole numbers, such as tokens, which no built-in model takes.

    Raises:
        ModelError: naming the model and what is wrong with it.
    """
    if whole and (name == "auto" or name in _BUILT_IN):
        raise ModelError(
            f"model = {name!r}: the inputs are whole numbers, and the built-in models take "
            "measured ones; save x as float32, or, if they are ids of words, set model to a "
            "factory of your own that embeds them"
        )
    if name == "auto":
        name = {1: "logistic", 3: "cnn" if input_shape[0] == 3 else "mlp"}.get(
            len(input_shape), "mlp"
        )
    factory = _BUILT_IN.get(name) or _import_factory(name)
    with _seeded(int(rng_for(seed, Stream.MODEL).integers(2**63))):
        try:
            model = factory(input_shape, num_classes)
        except ModelError:
            raise
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            raise ModelError(
                f"model = {name!r}: factory(input_shape={input_shape}, num_classes={num_classes}) "
                f"raised {type(error).__name__}: {one_line(error)}; correct the factory"
            ) from error
        if not isinstance(model, nn.Module):
            raise ModelError(
                f"model = {name!r}: returned {type(model).__name__}, not a torch.nn.Module; "
                "return one"
            )
        if any(is_lazy(p) for p in (*model.parameters(), *model.buffers())):
            zeros = torch.zeros(2, *input_shape, dtype=torch.int64 if whole else torch.float32)
            try:
                model.eval()
                with torch.no_grad():  # what inference_mode makes can never be trained
                    model(zeros)
            except (Exception, SystemExit) as error:  # the user's code may raise anything
                raise misfit(name, input_shape, num_classes, error) from error
    if not any(p.requires_grad for p in model.parameters()):
        raise ModelError(f"model = {name!r}: has no parameter to train; give it some")
    return model


def placed(model: nn.Module, device: str) -> nn.Module:
    """The model, moved to a device; a network of one's own may return nothing from `to`."""
    model.to(device)
    return model


def misfit(
    name: str, input_shape: tuple[int, ...], num_classes: int, why: BaseException
) -> ModelError:
    """The error of a model that does not map examples to class scores."""
    told = f"{type(why).__name__}: {one_line(why):.300}"
    shape = ", ".join(map(str, input_shape))
    return ModelError(f"model = {name!r}: {told}; it must map (n, {shape}) to (n, {num_classes})")


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the generators that a factory may draw from; what it changes for all is changed back."""
    kind = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]), global_generators(seed):
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            torch.set_default_dtype(kind)


def check_device(device: str) -> None:
    """Raises ModelError when this machine has no such device."""
    if device == "cuda" and not torch.cuda.is_available():
        raise ModelError("device = 'cuda': PyTorch finds no CUDA device here; set device = 'cpu'")


def _import_factory(name: str) -> Callable[[tuple[int, ...], int], nn.Module]:
    module, _, attribute = name.partition(":")
    if not attribute:
        raise ModelError(
            f"model = {name!r}: unknown; use auto, {', '.join(_BUILT_IN)} or package.module:factory"
        )
    try:
        factory: Callable[[tuple[int, ...], int], nn.Module]
        factory = getattr(importlib.import_module(module), attribute)
        return factory
    except (ImportError, AttributeError) as error:
        raise ModelError(
            f"model = {name!r}: cannot be imported: {one_line(error)}; install its package, or set "
            "PYTHONPATH to the folder it lies in"
        ) from error
    except Exception as error:  # the user's code may raise anything
        raise ModelError(
            f"model = {name!r}: importing it raised {type(error).__name__}: {one_line(error)}; "
            "correct the module or its name"
        ) from error
