"""Ways to give bad input for real: through the command, a client's node config, its replies."""

import contextlib
import ctypes
import datetime
import http.server
import io
import logging
import os
import re
import resource
import runpy
import signal
import ssl
import struct
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
import typer
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo

from client_app import app as real
from common.config import RunConfig
from common.errors import GreedyfedError
from common.wire import ClientInfo, encode_info
from experiments import cli
from experiments.local_grid import FIRST_CLIENT_NODE, SERVER_NODE, LocalGrid
from server_app.app import app as server_app
from server_app.run_directory import RunDirectory
from tests.federation import SilentGrid, directory_of, faulty_app, history_of
from tests.own_files import class_folders, npz

ROOT = Path(__file__).parents[1]
LONG = "x" * 300  # more than a file's name may have
SERVER_LOG, HISTORY = "server's log", "`history.jsonl`"


@dataclass(frozen=True)
class Told:
    """What a user reads: one line, where it stands, and all that was printed with it."""

    line: str
    where: str
    output: str = ""
    code: int = 0


Provoke = Callable[[Path], Told]
Make = Callable[[Path], object]
Around = Callable[[], contextlib.AbstractContextManager[object]]


@contextlib.contextmanager
def a_folder() -> Iterator[Path]:
    """An empty working directory, in which modules are found."""
    with tempfile.TemporaryDirectory() as name, contextlib.chdir(name):
        folder = Path(name).resolve()
        sys.path.insert(0, name)
        try:
            yield folder
        finally:
            sys.path.remove(name)


# ---- commands --------------------------------------------------------------------------------


def call(program: Callable[[], object], *arguments: str) -> tuple[int, str]:
    """The exit code and stderr of a program of this checkout, called in this process."""
    stderr, log = io.StringIO(), logging.getLogger("greedyfed")
    argv, sys.argv = sys.argv, ["greedyfed", *arguments]
    signals = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    handlers, propagate, level = log.handlers[:], log.propagate, log.level
    try:
        with contextlib.redirect_stderr(stderr), contextlib.redirect_stdout(io.StringIO()):
            program()
    except SystemExit as end:
        if isinstance(end.code, str):  # sys.exit(text), as the interpreter treats it
            return 1, stderr.getvalue() + end.code + "\n"
        return int(end.code or 0), stderr.getvalue()
    finally:
        sys.argv = argv
        log.handlers, log.propagate, log.level = handlers, propagate, level
        for number, handler in signals.items():
            signal.signal(number, handler)
    return 0, stderr.getvalue()


def greedyfed(*arguments: str, app: typer.Typer = cli.app) -> tuple[int, str]:
    return call(lambda: cli.main(app), *arguments)


def command(
    *arguments: str,
    make: Make = lambda folder: None,
    app: typer.Typer = cli.app,
    context: Around = contextlib.nullcontext,
) -> Provoke:
    """A command in a folder that `make` has filled."""

    def provoke(folder: Path) -> Told:
        make(folder)
        with context():
            code, output = greedyfed(*arguments, app=app)
        return Told(output.splitlines()[-1], f"stderr, exit {code}", output, code)

    return provoke


def members(**keys: bytes) -> Make:
    """A folder of public keys, and the certificate of the SuperLink's CA."""

    def make(folder: Path) -> None:
        certify(folder, "ca")
        (folder / "members").mkdir()
        for name, key in keys.items():
            (folder / "members" / f"{name}.pub").write_bytes(key)

    return make


def public_key() -> bytes:
    """A SuperNode's, as docker/keypair.py writes it."""
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return ec.generate_private_key(ec.SECP384R1()).public_key().public_bytes(*form)


def script(name: str, *arguments: str, make: Make = lambda folder: None) -> Provoke:
    """A script of docker/, which stands alone."""

    def provoke(folder: Path) -> Told:
        make(folder)
        path = str(ROOT / "docker" / name)
        code, output = call(lambda: runpy.run_path(path, run_name="__main__"), *arguments)
        return Told(output.splitlines()[-1], f"stderr, exit {code}", output, code)

    return provoke


def run(*keys: str, **how: object) -> Provoke:
    """`greedyfed run` of three clients and one round, with more keys."""
    return command(*RUN, *keys, **how)


RUN = ("run", "-c", "num-clients=3", "-c", "num-rounds=1")
KEYS = {"num-clients": 3, "num-rounds": 1}
#: The directory of such a run.
DIRECTORY = f"runs/{RunConfig.from_flat(KEYS).run_id}"


def file(name: str, content: str | bytes = "") -> Callable[[Path], Path]:
    """Write a file."""

    def make(folder: Path) -> Path:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return make


def a_run(folder: Path) -> Path:
    """The directory of a run that lacks nothing but its summary."""
    code, output = greedyfed(*RUN)
    assert code == 0, output
    directory = folder / DIRECTORY
    (directory / "summary.json").unlink()
    return directory


def damaged(name: str, content: bytes) -> Make:
    """A run one of whose files holds something else."""
    return lambda folder: (a_run(folder) / name).write_bytes(content)


@contextlib.contextmanager
def without(module: str) -> Iterator[None]:
    """An installation that lacks a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, module, None)
        yield


# ---- permissions, and a full disk ------------------------------------------------------------


@contextlib.contextmanager
def held() -> Iterator[None]:
    """The run directory is in use."""
    directory = RunDirectory(RunConfig.from_flat(KEYS | {"resume": True}))
    try:
        yield
    finally:
        directory.close()


@contextlib.contextmanager
def unprivileged() -> Iterator[None]:
    """Where root is like other users, who may not read and write everything."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "capset"):
        pytest.skip("root's capabilities can be dropped on Linux only; run as another user")
    header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, sets) == 0
    effective = sets[0]
    sets[0] &= ~0b110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert libc.capset(header, sets) == 0
    try:
        yield
    finally:
        sets[0] = effective
        assert libc.capset(header, sets) == 0


def forbidden(name: str, make: Make) -> Make:
    """Fill the folder, and let nobody use one thing in it."""

    def forbid(folder: Path) -> object:
        made = make(folder)
        (path,) = folder.glob(name)
        path.chmod(0)
        return made

    return forbid


def denied(*keys: str, name: str, make: Make) -> Provoke:
    """`greedyfed run` with something that may not be used."""
    return run(*keys, make=forbidden(name, make), context=unprivileged)


def full(name: str, make: Make = lambda folder: None) -> Make:
    """No space is left on the device for one of the files."""

    def fill(folder: Path) -> None:
        if not Path("/dev/full").exists():
            pytest.skip("needs /dev/full")
        make(folder)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to("/dev/full")

    return fill


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """No file may grow beyond 40 KB: what `ulimit -f` and quotas do."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def dead_proxy() -> Iterator[None]:
    """An environment whose proxy does not answer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("http_proxy", "http://127.0.0.1:9")
        yield


def missing(library: str) -> Around:
    """A library that is not installed."""

    @contextlib.contextmanager
    def without() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, library, None)
            yield

    return without


# ---- clients ---------------------------------------------------------------------------------


class NamedGrid(LocalGrid):
    """A grid whose operator registered the keys of all nodes but the last under its client-id."""

    def get_nodes(self) -> list[NodeInfo]:
        ids = list(self.get_node_ids())
        names = [f"good-{k}" for k in range(len(ids) - 1)] + ["clinic-a"]
        return [NodeInfo(node_id=n, name=name) for n, name in zip(ids, names, strict=True)]


def _serve(grid: LocalGrid, config: RunConfig) -> list[str]:
    """Run the ServerApp; returns its log, and last the error that ended it."""
    lines: list[str] = []
    handler, log = logging.Handler(), logging.getLogger("greedyfed")
    handler.emit = lambda record: lines.append(record.getMessage())
    log.addHandler(handler)
    propagate, log.propagate = log.propagate, False
    try:
        server_app(grid=grid, context=Context(1, SERVER_NODE, {}, RecordDict(), config.to_flat()))
    except GreedyfedError as error:
        lines.append(f"{type(error).__name__}: {error}")
    finally:
        log.removeHandler(handler)
        log.propagate = propagate
    return lines


def client(
    make: Make = npz,
    app: ClientApp = real.app,
    grid: type[LocalGrid] = LocalGrid,
    context: Around = contextlib.nullcontext,
    **keys: object,
) -> Provoke:
    """A client on the `data-path` that `make` returns, if any, beside two that are right.

    `keys` are those of its node config; the server has six images of 3 × 4 × 4 in three classes.
    """

    def provoke(folder: Path) -> Told:
        (folder / "good").mkdir()
        good = str(npz(folder / "good"))
        path = make(folder)
        node = {"data-path": str(path).removeprefix(f"{folder}/")} if path else {}
        node |= {k.replace("_", "-"): v for k, v in keys.items()}
        nodes = [{"data-path": good, "client-id": f"good-{k}"} for k in range(2)]
        config = own(good).to_flat()
        with context():
            lines = _serve(grid(app, config, [*nodes, node]), own(good))
        (line,) = [line for line in lines if "not used" in line]
        return Told(line, SERVER_LOG, line)

    return provoke


def own(data_dir: str) -> RunConfig:
    keys = {"dataset": "own", "data-dir": data_dir, "model": "mlp", "clients-per-round": 2}
    return RunConfig.from_flat(keys | {"num-rounds": 1})


def server(make: Callable[[Path], object]) -> Provoke:
    """The server's own data."""

    def provoke(folder: Path) -> Told:
        config = own(str(make(folder)))
        line = _serve(LocalGrid(real.app, config.to_flat(), [{}, {}]), config)[-1]
        return Told(line, SERVER_LOG, line)

    return provoke


def stranger(client_id: str | None, **about: Any) -> ClientApp:
    """A client's app of another make, which introduces itself so, or not at all."""
    app = ClientApp()

    @app.query()
    def query(message: Message, context: Context) -> Message:
        if "client-id" in context.node_config:
            return real.query(message, context)
        content = encode_info(ClientInfo(client_id, 6, **about)) if client_id else RecordDict()
        return Message(content, reply_to=message)

    app.train()(real.train)
    return app


def reply(fault: str) -> Provoke:
    """A client of three that does to its update what tests.federation.FAULTS says, or is silent."""

    def provoke(folder: Path) -> Told:
        keys = {"num-clients": 3, "num-rounds": 1, "max-examples": 1000, "learning-rate": 0.1}
        config = RunConfig.from_flat(keys | {"round-deadline": 0.2})
        nodes: list[dict[str, object]] = [{}, {}, {}]
        grid: LocalGrid
        if fault == "silent":
            silent = {FIRST_CLIENT_NODE + 2}
            grid = SilentGrid(faulty_app, config.to_flat(), nodes, silent=silent)
        else:
            nodes[2]["fault"] = fault
            grid = LocalGrid(faulty_app, config.to_flat(), nodes)
        _serve(grid, config)
        (record,) = history_of(directory_of(config))
        (line,) = record["failures"].values()
        return Told(line, HISTORY, line)

    return provoke


# ---- files -----------------------------------------------------------------------------------


def mnist(spoil: str = "", content: bytes = b"", labels: int = 60) -> Make:
    """MNIST in torchvision's layout with 60 images in each part; one file may hold junk."""

    def make(folder: Path) -> None:
        for part in ("train", "t10k"):
            images = struct.pack(">IIII", 0x803, 60, 28, 28) + bytes(60 * 784)
            names = struct.pack(">II", 0x801, labels) + bytes(k % 10 for k in range(labels))
            file(f"MNIST/raw/{part}-images-idx3-ubyte", images)(folder)
            file(f"MNIST/raw/{part}-labels-idx1-ubyte", names)(folder)
        if spoil:
            file(f"MNIST/raw/{spoil}", content)(folder)

    return make


def cifar10(**images: bytes) -> Make:
    """cifar10.zip; a name is <part>_<class>, for example train_cat."""

    def make(folder: Path) -> None:
        with zipfile.ZipFile(folder / "cifar10.zip", "w") as archive:
            for name, content in images.items():
                archive.writestr(f"{name.replace('_', '/')}/1.png", content)

    return make


def images_with(name: str, content: bytes) -> Make:
    """Class folders, one image of which holds something else."""
    return lambda folder: _overwritten(class_folders(folder), name, content)


def _overwritten(root: Path, name: str, content: bytes) -> Path:
    file(name, content)(root)
    return root


def lying(folder: Path) -> Path:
    """A .npz file of a few bytes whose header announces a petabyte."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000000, 1), }\n"
    with zipfile.ZipFile(folder / "lying.npz", "w") as archive:
        start = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
        archive.writestr("x.npy", start + header)
        archive.writestr("y.npy", start + header)
    return folder / "lying.npz"


# ---- certificates ----------------------------------------------------------------------------


def certify(folder: Path, name: str, address: str = "", ca: str = "", days: int = 1) -> None:
    """Make NAME.key and NAME.crt: for a server at `address`, signed by `ca`; or a CA itself."""
    key = signer = ec.generate_private_key(ec.SECP256R1())
    subject = issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    extensions: list[x509.ExtensionType] = [x509.BasicConstraints(ca=not ca, path_length=None)]
    if ca:
        signer = serialization.load_pem_private_key((folder / f"{ca}.key").read_bytes(), None)
        issuer = x509.load_pem_x509_certificate((folder / f"{ca}.crt").read_bytes()).subject
        extensions.append(x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))]))
    else:
        no = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment"), False)
        no |= dict.fromkeys(("key_agreement", "encipher_only", "decipher_only"), False)
        yes = dict.fromkeys(("digital_signature", "key_cert_sign", "crl_sign"), True)
        extensions.append(x509.KeyUsage(**no, **yes))
    extensions.append(x509.SubjectKeyIdentifier.from_public_key(key.public_key()))
    extensions.append(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()))
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    serial = x509.random_serial_number()
    span = now - 9 * day, now + days * day
    builder = x509.CertificateBuilder(issuer, subject, key.public_key(), serial, *span)
    for extension in extensions:
        critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
        builder = builder.add_extension(extension, critical)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    (folder / f"{name}.key").write_bytes(private)
    certificate = builder.sign(signer, hashes.SHA256())
    (folder / f"{name}.crt").write_bytes(certificate.public_bytes(pem))


@contextlib.contextmanager
def listening(certificate: Path | None) -> Iterator[str]:
    """A web server on loopback that knows no page, with TLS if it has a certificate."""

    class Nothing(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Nothing to tell."""

        def do_GET(self) -> None:
            self.send_error(404)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Nothing)
    if certificate:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate, certificate.with_suffix(".key"))
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def superlink(
    *arguments: str,
    name: str = "127.0.0.1",
    days: int = 1,
    ca: str = "ca",
    tls: bool = True,
) -> Provoke:
    """`greedyfed run --superlink` where a server of this certificate listens."""

    def provoke(folder: Path) -> Told:
        for authority in ("ca", "foreign"):
            certify(folder, authority)
        certify(folder, "server", name, ca, days)
        with listening(folder / "server.crt" if tls else None) as address:
            return to_superlink(address, *arguments)(folder)

    return provoke


def to_superlink(address: str, *arguments: str, **how: object) -> Provoke:
    """`greedyfed run --superlink ADDRESS`, all of whose other arguments are right."""

    def provoke(folder: Path) -> Told:
        where = ("--output-dir", str(folder), "--superlink", address)
        return run(*where, *arguments, **how)(folder)

    return provoke


# ---- the page --------------------------------------------------------------------------------


def stable(line: str, folder: Path) -> str:
    """Without what differs between machines and calls: the folder, the run's name, numbers."""
    line = line.replace(str(folder), "DIR").replace(f"({os.getpid()})", "(PID)")
    line = re.sub(r"127\.0\.0\.1:\d{5}", "127.0.0.1:PORT", line)
    line = re.sub(r"greedyfed-digits-[0-9a-f]{10}", "RUN", line)
    line = re.sub(r"\[(SSL|X509)[^\]]*\] [a-zA-Z ]+", "OPENSSL", line)
    line = re.sub(r" ?\(_ssl\.c:\d+\)", "", line)
    line = re.sub(r"\[Errno -?\d+\]", "[Errno N]", line)
    return re.sub("x{9,}", "xxx…", line)


def told_of(provoke: Provoke) -> tuple[Told, str]:
    """What a kind of bad input gives, and its line as the page has it."""
    with a_folder() as folder:
        told = provoke(folder)
        return told, stable(told.line, folder)
