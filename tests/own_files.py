"""Small data sets in every format that one's own data may have, and a client that reads them."""

import io

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from PIL import Image

from client_app.agreement import agreed
from client_app.data import my_data
from common import own_data
from common.config import RunConfig
from common.datasets import load_splits
from common.task import Task

TASK = Task((3, 4, 4), 3, "pixels")
FOLDERS = Task((3, 4, 4), 3, "pixels", classes=("ant", "bee", "cow"))
TABLES = Task((2,), 3, features=("b", "a"))
CONFIG = RunConfig.from_flat({"dataset": "own", "data-dir": "server.npz", "local-epochs": 4})
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 3, 4, 4), np.uint8)
LABELS = np.array([0, 0, 1, 1, 2, 2])
GREY = (np.arange(64, dtype=np.uint8) * 4).reshape(8, 8)
COLOUR = np.stack([GREY, GREY.T, 255 - GREY], axis=-1)


def npz(folder, x=PIXELS, y=LABELS, **more):
    np.savez(
        folder / "data.npz", **{k: v for k, v in {"x": x, "y": y, **more}.items() if v is not None}
    )
    return folder / "data.npz"


def image(pixels, form="PNG"):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, form)
    return stream.getvalue()


def film(form):
    """Two pictures of 8 × 8 in one file: this one, and its negative."""
    first, second = (Image.fromarray(COLOUR ^ np.uint8(k)) for k in (0, 255))
    stream = io.BytesIO()
    first.save(stream, form, save_all=True, append_images=[second])
    return stream.getvalue()


def class_folders(folder, classes=("ant", "bee", "cow"), names=None):
    root = folder / "images"
    for k, (pixels, label) in enumerate(zip(PIXELS, LABELS, strict=True)):
        (root / classes[label]).mkdir(parents=True, exist_ok=True)
        (root / classes[label] / f"{k}.png").write_bytes(image(pixels.transpose(1, 2, 0)))
    if names is not None:
        (root / "classes.txt").write_text("\n".join(names) + "\n")
    return root


def table(folder, form="csv", **columns):
    columns = {"b": [1.5, 2, -3, 4], "label": [0, 1, 2, 1], "a": [255, 0, 7, 1]} | columns
    content = pa.table({k: v for k, v in columns.items() if v is not None})
    path = folder / f"data.{form}"
    writer = pa.csv.write_csv if form == "csv" else pa.parquet.write_table
    writer(content, path)
    return path


def fresh_process():
    own_data._from_files.cache_clear()
    own_data._from_function.cache_clear()
    agreed.cache_clear()
    load_splits.cache_clear()


def mine(path, task=TASK, **keys):
    node = {"data-path": str(path)} | {k.replace("_", "-"): v for k, v in keys.items()}
    return my_data(node, CONFIG, task, 42)
