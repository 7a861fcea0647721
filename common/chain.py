"""Networks that are nothing but known layers in turn; any other one may do anything."""

from torch import nn

#: Layers, each with the prefix of its parameters' names in the state_dict.
Chain = list[tuple[str, nn.Module]]

NOTHING = nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout  # in evaluation
ELEMENTWISE = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish),
    *(nn.Tanh, nn.Sigmoid, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish),
)
POOLING = nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d
PARAMETRIC = nn.Flatten, nn.Linear, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d
KNOWN = {*NOTHING, *ELEMENTWISE, *POOLING, *PARAMETRIC}


def chain_of(model: nn.Module) -> tuple[Chain, str]:
    """The layers of a network that is nothing but known layers in turn, or why it is not.

    Each with the prefix of its parameters' names. What is neither a plain `nn.Sequential` nor of a
    known layer's very type may do anything; so may one with hooks, or a forward of its own.
    """
    chain: Chain = []
    if why := _walk(model, "", chain):
        return [], why
    with_tensors = [layer for _, layer in chain if layer.state_dict()]
    if len({id(layer) for layer in with_tensors}) < len(with_tensors):
        return [], "it uses a layer with parameters twice"
    return chain, ""


def _walk(module: nn.Module, prefix: str, chain: Chain) -> str:
    """Put the layers into the chain, in the order in which they run; says what is in the way."""
    what = f"layer {prefix[:-1]!r}" if prefix else "it"
    if any(value for name, value in vars(module).items() if name.endswith("_hooks")):
        return f"{what} has hooks"
    if "forward" in vars(module):
        return f"{what} has a forward of its own"
    if type(module) is nn.Sequential:
        # Not named_children(), which leaves out an object that is there for the second time.
        for name, part in module._modules.items():
            if part is not None and (why := _walk(part, f"{prefix}{name}.", chain)):
                return why
        return ""
    if type(module) not in KNOWN:
        return f"{what} is of class {type(module).__name__}"
    chain.append((prefix, module))
    return ""
