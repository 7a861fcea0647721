"""Decoded data kept as safetensors, so that not every process has to decode it again."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from torch import Tensor


def decoded_once(
    cache: Path, key: str, decode: Callable[[], dict[str, Tensor]]
) -> dict[str, Tensor]:
    """The tensors in `cache` if they were written under `key`; else those of `decode`, kept there.

    A read-only or full disk costs the next process a decoding, nothing else. Only the user may read
    the file, since the data it comes from may be private.
    """
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save

    try:
        with safe_open(cache, framework="pt") as file:
            if (file.metadata() or {}).get("key") == key:
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError):
        pass
    data = decode()
    partial = None
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(prefix=cache.name, dir=cache.parent)  # mode 0600
        with open(handle, "wb") as stream:
            stream.write(save(data, metadata={"key": key}))
        os.replace(partial, cache)
    except OSError:
        if partial:
            Path(partial).unlink(missing_ok=True)
    return data
