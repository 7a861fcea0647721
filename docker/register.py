"""Make a folder of public keys the members of a federation: register.py SUPERLINK CA FOLDER.

`<client-id>.pub` is one member. A new file is registered, a node whose file is gone is removed, and
where a file holds another key than before, both. Everything is checked before anything is changed.
`flwr supernode list` tells neither keys nor names, which is why this asks the SuperLink itself.
"""

import sys
from pathlib import Path

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, uses_nist_ec_curve

MAX_NAME = 100  # as common/wire.py has it


class MembersError(Exception):
    """The folder cannot be carried out; one line says why."""


def read_members(folder: Path) -> dict[str, bytes]:
    """Client id -> public key as the SuperLink keeps it, of every *.pub in a folder.

    Raises:
        MembersError: a file that is no member, two with one key, or none at all.
    """
    members: dict[str, bytes] = {}
    for file in sorted(folder.glob("*.pub")):
        if not file.stem.isprintable() or len(file.stem) > MAX_NAME:
            raise MembersError(
                f"{file.name!r:.120}: the name before .pub is the client's id, 1 to {MAX_NAME} "
                "printable characters; rename it"
            )
        try:
            key = load_ssh_public_key(file.read_bytes())
            if not isinstance(key, ec.EllipticCurvePublicKey) or not uses_nist_ec_curve(key):
                raise ValueError("not a key of a NIST curve")
        except (OSError, ValueError, UnsupportedAlgorithm) as error:
            raise MembersError(
                f"{file.name}: not a SuperNode's public key ({error}); it is one line, "
                "`ecdsa-sha2-nistp384 …`, that docker/keypair.py makes"
            ) from None
        text = public_key_to_bytes(key)
        if twin := next((name for name, other in members.items() if other == text), None):
            raise MembersError(f"{file.name}: the same key as {twin}.pub; each needs its own")
        members[file.stem] = text
    if not members:
        raise MembersError(
            f"{folder}: no *.pub in it; an empty folder removes nobody, for a removed key cannot "
            "come back, and this may be the wrong folder"
        )
    return members


def check(members: dict[str, bytes], nodes: list[NodeInfo]) -> None:
    """Refuse what Flower would refuse half-way.

    Raises:
        MembersError: a key that is another's, or was removed before.
    """
    known = {node.public_key: node for node in nodes}
    for name, key in members.items():
        node = known.get(key)
        if node and node.status == "unregistered":
            raise MembersError(
                f"{name}.pub: this key was removed before, and Flower takes none back; "
                "the client must make a new one"
            )
        if node and node.name != name:
            raise MembersError(
                f"{name}.pub: this key is registered as {node.name!r}, and Flower renames none; "
                "name the file so again, or let the client make a new key"
            )


def carry_out(superlink: ControlHttpClient, members: dict[str, bytes]) -> None:
    """Unregister and register what differs; print a line for each member, old or new.

    Raises:
        MembersError: before any change.
    """
    nodes = list(superlink.ListNodes(ListNodesRequest()).nodes_info)
    check(members, nodes)
    present = [node for node in nodes if node.status != "unregistered"]
    for node in present:
        if members.get(node.name) != node.public_key:
            superlink.UnregisterNode(UnregisterNodeRequest(node_id=node.node_id))
            print(f"{node.name or node.node_id}: key removed")
    status = {node.public_key: node.status for node in present}
    for name, key in members.items():
        if key in status:
            seen = status[key] if status[key] != "registered" else "never seen"
            print(f"{name}: already registered, {seen}")
        else:
            superlink.RegisterNode(RegisterNodeRequest(public_key=key, name=name))
            print(f"{name}: registered")


def main(address: str, ca: str, folder: str) -> None:
    """Carry the folder out; exits with 1 and one line if it cannot."""
    try:
        superlink = ControlHttpClient.from_server_address(address, False, ca, ())
    except OSError as error:  # ssl's own errors too
        sys.exit(f"register: {ca}: cannot be read: {error}; give the certificate of the CA")
    try:
        carry_out(superlink, read_members(Path(folder)))
    except MembersError as error:
        sys.exit(f"register: {error}; nothing was changed")
    except httpx.HTTPStatusError as error:
        sys.exit(f"register: the SuperLink refuses: {error.response.text[:300]}")
    except httpx.HTTPError as error:
        sys.exit(f"register: the SuperLink does not answer at {address} ({error}); is it running?")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("register: needs three arguments; write register.py SUPERLINK CA FOLDER")
    main(*sys.argv[1:])
