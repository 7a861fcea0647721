"""Decoded data kept as safetensors, so that not every process has to decode it again."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

#: Tensors by name, and texts that belong to them: names of features, what was left out.
Decoded = tuple[dict[str, Tensor], dict[str, list[str]]]
#: What another version of the readers has decoded is not used; count up when they change.
READERS = 3


def decoded_once(cache: Path, key: str, decode: Callable[[], Decoded]) -> Decoded:
    """What is in `cache` if it was written under `key`; else what `decode` gives, kept there.

    A read-only or full disk costs the next process a decoding, nothing else. Only the user may read
    the file, since the data it comes from may be private.
    """
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save

    key = f"{READERS}:{key}"
    try:
        with safe_open(cache, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("key") == key:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                return tensors, json.loads(metadata["about"])
    except (OSError, SafetensorError):
        pass
    data, about = decode()
    partial = None
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(prefix=cache.name, dir=cache.parent)  # mode 0600
        with open(handle, "wb") as stream:
            stream.write(save(data, metadata={"key": key, "about": json.dumps(about)}))
        os.replace(partial, cache)
    except OSError:
        if partial:
            Path(partial).unlink(missing_ok=True)
    return data, about
