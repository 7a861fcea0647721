"""Every kind of bad input gives one line, and docs/errors.md lists them all.

`python -m tests.test_errors` writes the page anew.
"""

import re
import struct

import numpy as np
import pytest

from benchmarks.round import app as round_benchmark
from experiments.local_grid import identify_process
from experiments.plots import app as plots
from tests.bad_input import (
    DIRECTORY,
    LONG,
    ROOT,
    SERVER_LOG,
    NamedGrid,
    Provoke,
    a_run,
    certify,
    cifar10,
    client,
    command,
    damaged,
    dead_proxy,
    denied,
    file,
    forbidden,
    full,
    held,
    images_with,
    lying,
    members,
    missing,
    mnist,
    public_key,
    reply,
    run,
    script,
    server,
    small_files,
    stranger,
    superlink,
    to_superlink,
    told_of,
    unprivileged,
    without,
)
from tests.federation import FAULTS
from tests.own_files import LABELS, PIXELS, class_folders, film, image, npz, table

PAGE = ROOT / "docs" / "errors.md"
INTRO = """\
# Errors

An error that you can mend is one line: the value at fault, the rule that it breaks, and after a
semicolon what to do. `greedyfed` writes it to stderr and exits with 2 when the request is wrong
(nothing was started), with 1 when the run failed (what was learned is on disk), with 128 + n when
signal n stopped it, and with 0 when all is done. What is wrong with one client stops no run: the
client is left out, and the server's log, `history.jsonl` and `greedyfed status` say why.

A test provokes everything below and writes this page (`python -m tests.test_errors`). DIR stands
for the working directory, RUN for a run's name, PORT, PID and N for numbers,
and OPENSSL for a reason in that library's words.
"""
BAD_LABELS = np.array([0, 0, 1, 1, 2, 0.5])
NAN = np.where(np.arange(6).reshape(6, 1, 1, 1) == 1, np.nan, PIXELS)
PNG = image(PIXELS[0].transpose(1, 2, 0))
CUT = struct.pack(">IIII", 0x803, 60, 28, 28) + bytes(1000)
MNIST = ("-c", "dataset=mnist", "--data-dir", ".")
CIFAR10 = ("-c", "dataset=cifar10", "--data-dir", ".")
REGISTER = ("register.py", "127.0.0.1:1", "ca.crt", "members")
KEY = public_key()
ED25519 = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIPYKFZ5uDH3uwLJkDLWvBMlHBTVXcSEbS2SkBJmKQVp"
PLOT = ("runs", "-o", "accuracy.png")

REPLIES = {
    "it raises": "raises",
    "a parameter is NaN": "nan",
    "a parameter is infinite": "inf",
    "its model predicts nonsense": "huge",
    "too few parameters": "short",
    "a matrix of parameters": "matrix",
    "parameters of double precision": "double",
    "pickled objects": "pickled",
    "a header that announces terabytes": "lying header",
    "no parameters": "no arrays",
    "no result": "no result",
    "no examples": "zero examples",
    "a negative number of examples": "negative examples",
    "one and a half examples": "fraction",
    "a noise that is no number": "noise that is none",
    "more examples than `max-examples`": "boasts",
    "no answer": "silent",
}
WRITE = "python -m tests.test_errors"
ABOUT = {
    "Configuration": "Keys on the command line and in TOML files, and a SuperNode's node config.",
    "Data files": "A client's are named by its node config, the server's by `data-dir`.",
    "Replies": "What a client may send. The others of its round count all the same.",
    "Certificates": "Looked at by `greedyfed run --superlink` before a run is submitted.",
    "Keys": "SuperNodes' keys, and who they belong to.",
    "Paths": "Files and folders, run directories, addresses.",
    "Permissions": "Files that this user may not read or write.",
    "Disk full": "What was saved before stays, and `--resume` continues it.",
}


def network(name: str, layers: str) -> Provoke:
    """A run with a model of these layers, in a module of its own."""
    code = (
        "import torch\nfrom torch import nn\n"
        "class Drops(nn.Module):\n"
        "    def forward(self, x):\n        return nn.functional.dropout(x)\n"
        "class Flags(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.register_buffer('begun', torch.tensor(False))\n"
        "    def forward(self, x):\n        self.begun |= self.training\n"
        "        return 2 * x if self.begun else x\n"
        f"net = lambda shape, k: nn.Sequential({layers})\n"
    )
    return run("-c", f"model={name}:net", make=file(f"{name}.py", code))


KINDS: dict[str, dict[str, Provoke]] = {
    "Configuration": {
        "`-c num-round=3`: no such key": run("-c", "num-round=3"),
        "`-c num-rounds`: no value": run("-c", "num-rounds"),
        "`-c num-rounds=many`: a value of another type": run("-c", "num-rounds=many"),
        "`-c momentum=1.5`: a value out of range": run("-c", "momentum=1.5"),
        "`-c learning-rate=nan`": run("-c", "learning-rate=nan"),
        "`-c algorithm=best`: none of the choices": run("-c", "algorithm=best"),
        "no such option": command("run", "--num-rounds", "3"),
        "an option without its value": command("run", "--config"),
        "an option that is missing": command("partition"),
        "a TOML file with a syntax error": run(
            "--config", "keys.toml", make=file("keys.toml", "seed == 3")
        ),
        "a TOML file with a table": run(
            "--config", "keys.toml", make=file("keys.toml", "[training]\nmomentum = 0.1\n")
        ),
        "a text with a line break": run("-c", "output-dir=a\nb"),
        "more clients a round than there are": run("-c", "clients-per-round=6"),
        "a quorum above the cohort": run("-c", "quorum=4"),
        "an algorithm that selects by value, without values": run("-c", "valuation=none"),
        "exact values of a large cohort": run(
            "-c", "valuation=exact", "-c", "num-clients=20", "-c", "clients-per-round=15"
        ),
        "a budget too small for one value of each client": run("-c", "valuation-max-evaluations=5"),
        "groups of a validation set of images by a column": run("-c", "valuation-groups=column"),
        "`dataset = own` in a simulation": run("-c", "dataset=own", "--data-dir", "x.npz"),
        "more clients than the examples suffice for": run("-c", "num-clients=500"),
        "a split that no draw gives": run("-c", "num-clients=30", "-c", "dirichlet-alpha=1e-4"),
        "no held-out examples left for the test": run("-c", "validation-size=5000"),
        "a model of no known name": run("-c", "model=resnet"),
        "a model whose module is not found": run("-c", "model=no.such:net"),
        "a model whose module raises": run(
            "-c", "model=raises_on_import:net", make=file("raises_on_import.py", "1 / 0\n")
        ),
        "a model for inputs of another shape": run(
            "-c",
            "model=of_other_shape:net",
            make=file(
                "of_other_shape.py",
                "from torch import nn\n"
                "net = lambda shape, k: nn.Sequential(nn.Flatten(), nn.Linear(784, k))\n",
            ),
        ),
        "a model that learns nothing": run(
            "-c",
            "model=without_parameters:net",
            make=file(
                "without_parameters.py",
                "from torch import nn\n"
                "net = lambda shape, k: nn.Sequential(nn.Flatten(), nn.AvgPool1d(6, 6))\n",
            ),
        ),
        "a model that scores an example by the others of its batch": network(
            "mixes", "nn.Flatten(), nn.Linear(64, k), nn.BatchNorm1d(k, track_running_stats=False)"
        ),
        "a model with dropout that stays on": network(
            "drops", "nn.Flatten(), nn.Linear(64, k), Drops()"
        ),
        "a model that remembers in a flag": network(
            "flags", "nn.Flatten(), nn.Linear(64, k), Flags()"
        ),
        "a logger of no known name": run("-c", "loggers=wandb"),
        "a logger whose library is not installed": run(
            "-c", "loggers=mlflow", context=missing("mlflow")
        ),
        "`-c max-examples=1`, which no client keeps to": run("-c", "max-examples=1"),
        "node config without `data-path`": client(lambda f: None),
        "node config with `local-epochs=0`": client(local_epochs=0),
        "node config with `noise-sigma=-1.0`": client(noise_sigma=-1.0),
        "node config with a `client-id` of two lines": client(client_id="clinic\na"),
        "`--root-certificates` without `--superlink`": run("--root-certificates", "ca.crt"),
        "a public data set on a SuperLink, without `num-clients`": to_superlink(
            "127.0.0.1:1", "--insecure", "-c", "num-clients=0"
        ),
    },
    "Data files": {
        "MNIST is not there": run(*MNIST),
        "an MNIST file cut short": run(*MNIST, make=mnist("train-images-idx3-ubyte", CUT)),
        "an MNIST file without content": run(*MNIST, make=mnist("t10k-labels-idx1-ubyte")),
        "MNIST's images and labels of two downloads": run(*MNIST, make=mnist(labels=70)),
        "CIFAR-10 is not there": run(*CIFAR10),
        "`cifar10.zip` is no zip file": run(*CIFAR10, make=file("cifar10.zip", "junk")),
        "`cifar10.zip` with a broken image": run(
            *CIFAR10, make=cifar10(train_cat=b"no image", test_cat=PNG)
        ),
        "`cifar10.zip` with a class in its test half only": run(
            *CIFAR10, make=cifar10(train_cat=PNG, test_cat=PNG, test_dog=PNG)
        ),
        "a file of no known form": client(file("clinic.mat", "junk")),
        "a `.npz` that is none": client(file("clinic.npz", "junk")),
        "a `.npz` of Python objects": client(lambda f: npz(f, x=np.array([{}] * 6))),
        "a `.npz` whose header announces a petabyte": client(lying),
        "fewer labels than examples": client(lambda f: npz(f, y=LABELS[:5])),
        "no examples": client(lambda f: npz(f, x=PIXELS[:0], y=LABELS[:0])),
        "a label that is no class": client(lambda f: npz(f, y=BAD_LABELS)),
        "a label that the server does not know": client(lambda f: npz(f, y=LABELS + 1)),
        "NaN among the features": client(lambda f: npz(f, x=NAN)),
        "examples of another shape than the server's": client(
            lambda f: npz(f, x=PIXELS.transpose(0, 2, 3, 1))
        ),
        "classes of names for a server of numbers": client(class_folders),
        "images from 0 to 255 for a server of 0 to 1": client(lambda f: npz(f, x=PIXELS * 1.0)),
        "a `.npz` without x": client(lambda f: npz(f, x=None)),
        "two names for three classes": client(lambda f: npz(f, class_names=np.array([*"ab"]))),
        "a folder without class folders": client(lambda f: f / "good"),
        "a broken image": client(images_with("bee/2.png", PNG[:60])),
        "an image of another size": client(
            images_with("cow/5.png", image(np.zeros((5, 4, 3), np.uint8)))
        ),
        "a class folder that `classes.txt` lacks": client(
            lambda f: class_folders(f, names=["ant", "bee", "dog"])
        ),
        "a class of no known form of images": client(images_with("eel/1.heic", b"junk")),
        "images in folders of a class": client(images_with("bee/old/1.png", PNG)),
        "a film among images": client(images_with("bee/2.gif", film("GIF"))),
        "a CSV file with rows of different lengths": client(
            file("clinic.csv", "label,age\n0,70\n1\n")
        ),
        "a CSV file without rows": client(file("clinic.csv", "label,age\n")),
        "a CSV file that is not UTF-8": client(
            file("clinic.csv", "label,gr\u00f6\u00dfe\n0,70\n".encode("latin-1"))
        ),
        "a CSV file with decimal commas": server(file("clinic.csv", "label;age\n0;70,5\n1;8\n")),
        "a column twice": client(file("clinic.csv", "label,age,age\n0,70,71\n")),
        "a table without a label column": client(lambda f: table(f, label=None)),
        "a table with a column of words": server(lambda f: table(f, a=["w", "x", "y", "z"])),
        "a Parquet file that is none": client(file("clinic.parquet", "junk")),
        "a function that raises": client(
            lambda f: (
                file("clinic_raises.py", "def data():\n    return 1 / 0\n")(f)
                and "clinic_raises:data"
            )
        ),
        "bytes that are no images": server(lambda f: npz(f, x=PIXELS.reshape(6, 48))),
        "one class for the server": server(lambda f: npz(f, y=LABELS * 0)),
        "measured numbers as the server's labels": server(
            lambda f: npz(f, y=np.array([18, 3, 77, 41, 30, 62]))
        ),
        "a file of no known form for `greedyfed data`": command(
            "data", "clinic.mat", make=file("clinic.mat", "junk")
        ),
        "a single example for the server": server(lambda f: npz(f, x=PIXELS[:1], y=LABELS[:1])),
    },
    "Replies": {
        **{what: reply(fault) for what, fault in REPLIES.items()},
        "it does not say who it is": client(app=stranger(None)),
        "its client-id has 101 characters": client(app=stranger("x" * 101)),
        "its label-histogram has a negative number": client(
            app=stranger("clinic-a", label_histogram=(-1, 7))
        ),
        "its label-histogram has more classes than the task": client(
            app=stranger("clinic-a", label_histogram=(1,) * 6)
        ),
        "its label-histogram is of other examples": client(
            app=stranger("clinic-a", label_histogram=(1, 2))
        ),
        "its local-epochs are too many": client(app=stranger("clinic-a", local_epochs=10**7)),
        "its noise-sigma is no number": client(app=stranger("clinic-a", noise_sigma=np.nan)),
        "its client-id is another client's": client(client_id="good-0"),
    },
    "Certificates": {
        "`--superlink` without either": to_superlink("127.0.0.1:1"),
        "the CA's certificate is not there": to_superlink(
            "127.0.0.1:1", "--root-certificates", "ca.crt"
        ),
        "the CA's certificate is an empty file": to_superlink(
            "127.0.0.1:1", "--root-certificates", "ca.crt", make=file("ca.crt", "")
        ),
        "the CA's key in place of its certificate": to_superlink(
            "127.0.0.1:1",
            *("--root-certificates", "ca.key"),
            make=lambda folder: certify(folder, "ca"),
        ),
        "the SuperLink's certificate is of another CA": superlink(
            "--root-certificates", "ca.crt", ca="foreign"
        ),
        "the SuperLink's certificate is for another name": superlink(
            "--root-certificates", "ca.crt", name="192.0.2.7"
        ),
        "the SuperLink's certificate has expired": superlink(
            "--root-certificates", "ca.crt", days=-1
        ),
        "the SuperLink speaks plain text": superlink("--root-certificates", "ca.crt", tls=False),
        "`--insecure`, but the SuperLink uses TLS": superlink("--insecure"),
    },
    "Keys": {
        "a client-id that is not the name of its key": client(client_id="clinic-b", grid=NamedGrid),
        "`keypair.py`: one path": script("keypair.py", "node.key"),
        "`keypair.py`: a folder that is not there": script(
            "keypair.py", "nowhere/node.key", "a.pub"
        ),
        "`keypair.py`: a folder in place of the public key": script("keypair.py", "node.key", "."),
        "`register.py`: two arguments": script("register.py", "127.0.0.1:1", "ca.crt"),
        "`register.py`: a folder without keys": script(*REGISTER, make=members()),
        "`register.py`: a file that is no key": script(*REGISTER, make=members(a=b"junk")),
        "`register.py`: a key of another kind": script(*REGISTER, make=members(a=ED25519)),
        "`register.py`: one key twice": script(*REGISTER, make=members(a=KEY, b=KEY)),
        "`register.py`: too long a name": script(*REGISTER, make=members(**{"x" * 101: KEY})),
        "`register.py`: a CA's certificate that is not there": script(
            "register.py", "127.0.0.1:1", "missing.crt", "members", make=members(a=KEY)
        ),
        "`register.py`: a SuperLink that is not there": script(*REGISTER, make=members(a=KEY)),
    },
    "Paths": {
        "`--config` of no file": run("--config", "missing.toml"),
        "`--config` of a folder": run("--config", "."),
        "a data folder that does not exist": run("-c", "dataset=mnist", "--data-dir", "nowhere"),
        "a data folder with too long a name": run("-c", "dataset=mnist", "--data-dir", LONG),
        "a `data-path` that does not exist": client(lambda f: f / "nowhere.npz"),
        "a `data-path` in the home of nobody": client(lambda f: "~nobody-here/clinic.npz"),
        "an `output-dir` that is a file": run("--output-dir", "file", make=file("file", "")),
        "an `output-dir` in the home of nobody": run("--output-dir", "~nobody-here/runs"),
        "an `output-dir` that is a circle of links": run(
            "--output-dir", "circle", make=lambda f: (f / "circle").symlink_to("circle")
        ),
        "an `output-dir` with too long a name": run("--output-dir", LONG),
        "the directory of an unfinished run, without `--resume`": run(make=a_run),
        "the directory of a run that goes on": run("--resume", make=a_run, context=held),
        "a damaged checkpoint": run("--resume", make=damaged("state.safetensors", b"junk")),
        "a lost checkpoint": run(
            "--resume", make=lambda f: (a_run(f) / "state.safetensors").unlink()
        ),
        "a history that is no text": run("--resume", make=damaged("history.jsonl", b"\xff")),
        "a history of something else": run("--resume", make=damaged("history.jsonl", b"3\n")),
        "a history that lacks rounds": run("--resume", make=damaged("history.jsonl", b"")),
        "a damaged checkpoint of the run that more rounds go on from": run(
            "--resume", "-c", "num-rounds=2", make=damaged("state.safetensors", b"junk")
        ),
        "a SuperLink behind a proxy that does not answer": to_superlink(
            "superlink.invalid:9093", "--insecure", context=dead_proxy
        ),
        "`greedyfed partition` into files of an earlier one": command(
            *("partition", "--num-clients", "3", "--out", "."), make=file("client-0.npz", "")
        ),
        "`greedyfed partition` into a file": command(
            *("partition", "--num-clients", "3", "--out", "file"), make=file("file", "")
        ),
        "`greedyfed status` of a folder without runs": command("status", "."),
        "`greedyfed report` of a folder without runs": command("report", "."),
        "`greedyfed report` of a damaged run among others": command(
            "report", "runs", make=damaged("summary.json", b'{"status"')
        ),
        "`greedyfed report` without its extra": command(
            "report", DIRECTORY, make=a_run, context=lambda: without("plotly.offline")
        ),
        "`greedyfed watch` of no folder": command("watch", "nowhere"),
        "`greedyfed watch` at an address of another machine": command(
            "watch", DIRECTORY, "--host", "192.0.2.7", make=a_run
        ),
        "`greedyfed watch` without the report's extra": command(
            "watch", DIRECTORY, make=a_run, context=lambda: without("plotly.offline")
        ),
        "`greedyfed ledger` of no folder": command("ledger", "nowhere"),
        "`greedyfed ledger` of a file": command("ledger", "file", make=file("file", "")),
        "`greedyfed ledger` of a folder without a run": command("ledger", "."),
        "`greedyfed ledger` of a folder of runs": command("ledger", "runs", make=a_run),
        "`greedyfed ledger` of another program's folder": command(
            "ledger", ".", make=file("config.json", '{"lr": 0.1}')
        ),
        "`greedyfed ledger` of a history with a damaged line": command(
            "ledger", DIRECTORY, make=damaged("history.jsonl", b"junk\n{}\n")
        ),
        "`greedyfed ledger` of a history of something else": command(
            "ledger", DIRECTORY, make=damaged("history.jsonl", b'{"round": 1}\n')
        ),
        "`greedyfed ledger` of a config.json of something else": command(
            "ledger",
            DIRECTORY,
            make=damaged(
                "config.json",
                b'{"run-id": "x", "config": {"algorithm": "ucb", "seed": 0, "num-rounds": "abc"}}',
            ),
        ),
        "`greedyfed status` of a history that lacks rounds": command(
            "status", DIRECTORY, make=damaged("history.jsonl", b"")
        ),
        "`python -m experiments.plots` of a folder without runs": command(*PLOT, app=plots),
        "`python -m experiments.plots` of a damaged run": command(
            *PLOT, app=plots, make=damaged("config.json", b"junk")
        ),
        "`python -m experiments.plots` at a round that no run has": command(
            *PLOT, "--at", "99", app=plots, make=a_run
        ),
        "a picture of no known form": command(
            *("runs", "-o", "accuracy.mp3"), app=plots, make=a_run
        ),
        "`make bench DATA=nowhere`": command("--data-dir", "nowhere", app=round_benchmark),
        "`--superlink` without a port": to_superlink("fl.example.org", "--insecure"),
        "`--superlink` with no host's name": to_superlink("fl..org:9093", "--insecure"),
        "a SuperLink that is not there": to_superlink("127.0.0.1:1", "--insecure"),
        "another server in place of the SuperLink": superlink("--insecure", tls=False),
        "a relative `output-dir` on a SuperLink": to_superlink(
            "127.0.0.1:1", "--insecure", "--output-dir", "runs"
        ),
        "`--results` of no folder": to_superlink(
            "127.0.0.1:1", "--insecure", "--results", "nowhere"
        ),
    },
    "Permissions": {
        "`--config` of a file that may not be read": denied(
            *("--config", "keys.toml"), name="keys.toml", make=file("keys.toml")
        ),
        "an `output-dir` that may not be written": denied(
            *("--output-dir", "sealed"), name="sealed", make=lambda f: (f / "sealed").mkdir()
        ),
        "a checkpoint that may not be read": denied(
            "--resume", name=f"{DIRECTORY}/state.safetensors", make=a_run
        ),
        "a history that may not be read": denied(
            "--resume", name=f"{DIRECTORY}/history.jsonl", make=a_run
        ),
        "the run directory of another user": denied("--resume", name=DIRECTORY, make=a_run),
        "an MNIST file that may not be read": denied(
            *MNIST, name="MNIST/raw/train-images*", make=mnist()
        ),
        "a `cifar10.zip` that may not be read": denied(
            *CIFAR10, name="cifar10.zip", make=cifar10(train_cat=PNG, test_cat=PNG)
        ),
        "a `.npz` that may not be read": client(forbidden("data.npz", npz), context=unprivileged),
        "a CSV file that may not be read": client(
            forbidden("data.csv", table), context=unprivileged
        ),
        "a class folder that may not be read": client(
            forbidden("images/cow", class_folders), context=unprivileged
        ),
        "a CA's certificate that may not be read": to_superlink(
            "127.0.0.1:1",
            *("--root-certificates", "ca.crt"),
            make=forbidden("ca.crt", lambda folder: certify(folder, "ca")),
            context=unprivileged,
        ),
        "`greedyfed partition` into a folder that may not be written": command(
            *("partition", "--num-clients", "3", "--out", "sealed"),
            make=forbidden("sealed", lambda f: (f / "sealed").mkdir()),
            context=unprivileged,
        ),
        "`greedyfed report` into a folder that may not be written": command(
            *("report", DIRECTORY, "-o", "sealed/report.html"),
            make=lambda f: (a_run(f), forbidden("sealed", lambda f: (f / "sealed").mkdir())(f)),
            context=unprivileged,
        ),
        "`greedyfed status` of a run that may not be read": command(
            *("status", DIRECTORY),
            make=forbidden(f"{DIRECTORY}/config.json", a_run),
            context=unprivileged,
        ),
    },
    "Disk full": {
        "before the first round": run(make=full(f"{DIRECTORY}/.config.json.partial")),
        "while a round is under way": run(make=full(f"{DIRECTORY}/events.jsonl")),
        "at a checkpoint": run(make=full(f"{DIRECTORY}/.state.safetensors.partial")),
        "at the end, for the model": run(make=full(f"{DIRECTORY}/.model.safetensors.partial")),
        "at the end, for the summary": run(make=full(f"{DIRECTORY}/.summary.json.partial")),
        "a file larger than `ulimit -f` or a quota allows": run(
            "-c", "num-rounds=200", context=small_files
        ),
        "`greedyfed partition`": command(
            *("partition", "--num-clients", "3", "--out", "parts"),
            make=full("parts/.client-1.npz.partial"),
        ),
        "`python -m experiments.plots`": command(
            *PLOT, app=plots, make=full("accuracy.png", a_run)
        ),
    },
}
#: A line that names the value, and then the remedy.
LINE = re.compile(r"(greedyfed|register|keypair): \S.*(; | needs either )\S")
CASES = [(group, what) for group, kinds in KINDS.items() for what in kinds]


NUMBER = 40  # kinds that there must be at least


def row(what: str, line: str, where: str) -> str:
    quote = "``" if "`" in line else "`"
    return f"| {what} | {quote}{line}{quote} | {where} |"


def page(rows: dict[tuple[str, str], str]) -> str:
    parts = [INTRO]
    for group, kinds in KINDS.items():
        parts.append(f"\n## {group}\n\n{ABOUT[group]}\n\n")
        parts.append("| what is wrong | what is told | where |\n|---|---|---|\n")
        parts += [rows[group, what] + "\n" for what in kinds]
    return "".join(parts)


@pytest.mark.parametrize(("group", "what"), CASES)
def test_bad_input_gives_one_line_that_the_page_lists(group, what):
    told, line = told_of(KINDS[group][what])
    assert "Traceback" not in told.output
    if told.code:
        assert sum(LINE.match(each) is not None for each in told.output.splitlines()) == 1
        assert told.code == 1 or told.output == told.line + "\n"  # 2: nothing was started
    elif told.where == SERVER_LOG and "Error: " in told.line:
        assert re.search(r"Error: \S.*: \S.*; \S", told.line)
    assert row(what, line, told.where) in PAGE.read_text().splitlines(), f"call {WRITE}"


def test_the_page_lists_nothing_else():
    assert len(CASES) >= NUMBER
    text = PAGE.read_text()
    listed = [line for line in text.splitlines() if re.match(r"\| (?!what is wrong)", line)]
    assert len(listed) == len(CASES), f"call {WRITE}"
    rows = dict(zip(CASES, listed, strict=True))
    assert all(r.startswith(f"| {what} | ") for (_, what), r in rows.items()), f"call {WRITE}"
    assert text == page(rows), f"call {WRITE}"


def test_every_fault_of_a_reply_is_listed():
    assert set(FAULTS) < set(REPLIES.values())


if __name__ == "__main__":
    identify_process()
    rows = {}
    for group, what in CASES:
        told, line = told_of(KINDS[group][what])
        rows[group, what] = row(what, line, told.where)
    PAGE.write_text(page(rows))
