"""The scripts in docker/ that run inside the images: members, certificate names."""

import runpy
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from flwr.proto.node_pb2 import NodeInfo

from experiments.flower import PROJECT

register = SimpleNamespace(**runpy.run_path(str(PROJECT / "docker" / "register.py")))
names = SimpleNamespace(**runpy.run_path(str(PROJECT / "docker" / "names.py")))


class SuperLink:
    """What Flower's SuperLink does with keys, in a list."""

    def __init__(self):
        self.nodes = []

    def ListNodes(self, request):  # noqa: N802
        return SimpleNamespace(nodes_info=self.nodes)

    def RegisterNode(self, request):  # noqa: N802
        assert request.public_key not in {node.public_key for node in self.nodes}
        new = {"public_key": request.public_key, "name": request.name, "status": "registered"}
        self.nodes.append(NodeInfo(node_id=len(self.nodes) + 1, **new))

    def UnregisterNode(self, request):  # noqa: N802
        self.nodes[request.node_id - 1].status = "unregistered"

    @property
    def members(self):
        return {n.name: n.public_key for n in self.nodes if n.status != "unregistered"}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "clients"
    folder.mkdir()
    return folder


def make_key(folder, name):
    public = folder / f"{name}.pub"
    keypair = runpy.run_path(str(PROJECT / "docker" / "keypair.py"))
    keypair["main"](folder.parent / f"{name}.key", public)
    return public


def carry_out(superlink, folder):
    register.carry_out(superlink, register.read_members(folder))
    assert superlink.members == register.read_members(folder)


def test_the_folder_becomes_the_list_of_members(folder, capsys):
    superlink = SuperLink()
    make_key(folder, "clinic-a")
    second = make_key(folder, "clinic-b")
    carry_out(superlink, folder)
    assert capsys.readouterr().out.splitlines() == ["clinic-a: registered", "clinic-b: registered"]
    superlink.nodes[0].status = "online"
    second.unlink()
    make_key(folder, "clinic-c")
    carry_out(superlink, folder)
    assert capsys.readouterr().out.splitlines() == [
        "clinic-b: key removed",
        "clinic-a: already registered, online",
        "clinic-c: registered",
    ]
    make_key(folder, "clinic-a")
    carry_out(superlink, folder)
    assert capsys.readouterr().out.splitlines() == [
        "clinic-a: key removed",
        "clinic-a: registered",
        "clinic-c: already registered, never seen",
    ]


@pytest.mark.parametrize("returns_as", ["clinic-a", "clinic-b"])
def test_a_removed_key_and_a_renamed_one_are_refused_before_any_change(folder, returns_as):
    superlink = SuperLink()
    kept = make_key(folder, "clinic-a")
    make_key(folder, "other")
    carry_out(superlink, folder)
    if returns_as == "clinic-a":
        aside = shutil.move(kept, folder.parent)
        carry_out(superlink, folder)
        shutil.move(aside, folder)
        rule = "Flower takes none back"
    else:
        kept.rename(folder / f"{returns_as}.pub")
        rule = "registered as 'clinic-a'"
    before = superlink.members
    make_key(folder, "new")
    with pytest.raises(register.MembersError, match=rule):
        register.carry_out(superlink, register.read_members(folder))
    assert superlink.members == before


def test_what_is_no_list_of_members_is_refused(folder):
    with pytest.raises(register.MembersError, match="an empty folder removes nobody"):
        register.read_members(folder)
    public = make_key(folder, "clinic-a")
    shutil.copy(public, folder / "twin.pub")
    with pytest.raises(register.MembersError, match=r"twin\.pub: the same key as clinic-a\.pub"):
        register.read_members(folder)
    for content in (b"", b"\xff", (folder.parent / "clinic-a.key").read_bytes()):
        (folder / "twin.pub").write_bytes(content)
        with pytest.raises(register.MembersError, match=r"twin\.pub: not a SuperNode's public key"):
            register.read_members(folder)
    (folder / "twin.pub").unlink()
    public.rename(folder / f"{'x' * 101}.pub")
    with pytest.raises(register.MembersError, match="1 to 100 printable"):
        register.read_members(folder)


def test_a_superlink_that_does_not_answer_is_one_line(folder, tmp_path):
    make_key(folder, "clinic-a")
    authority = tmp_path / "ca.crt"
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    out = ["-nodes", "-subj", "/CN=ca", "-keyout", str(tmp_path / "k"), "-out", str(authority)]
    subprocess.run([*new, *out], check=True, capture_output=True)
    script = [sys.executable, str(PROJECT / "docker" / "register.py")]
    for address, ca, line in (
        ("127.0.0.1:1", authority, "register: the SuperLink does not answer at 127.0.0.1:1"),
        ("127.0.0.1:1", tmp_path / "none.crt", f"register: {tmp_path / 'none.crt'}"),
    ):
        done = subprocess.run(
            [*script, address, str(ca), str(folder)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert done.stderr.startswith(line)
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("", ""),
        ("fl.example.org", "DNS:fl.example.org"),
        (
            " fl.example.org, 192.0.2.7,2001:db8::1 ,",
            "DNS:fl.example.org,IP:192.0.2.7,IP:2001:db8::1",
        ),
    ],
)
def test_names_of_a_certificate(text, entries):
    assert names.subject_alt_name(text) == entries


@pytest.mark.parametrize(
    "text",
    ["fl.example.org:9443", "https://fl", "a_b", "-a", "10.0.0.300", "x" * 64, "a,b c", "*.x"],
)
def test_what_is_no_name_of_a_certificate_is_refused(text):
    with pytest.raises(ValueError, match="is neither a host name nor an IP address"):
        names.subject_alt_name(text)
