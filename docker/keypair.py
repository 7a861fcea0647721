"""Make a SuperNode's key pair: keypair.py PRIVATE PUBLIC, like ssh-keygen -t ecdsa -b 384."""

import os
import sys
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec


def main(private: Path, public: Path) -> None:
    """Write both files, the private one readable by its owner only, and last the public one."""
    key = ec.generate_private_key(ec.SECP384R1())
    openssh = serialization.Encoding.OpenSSH
    with open(os.open(private, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.OpenSSH,
                serialization.NoEncryption(),
            )
        )
    public.write_bytes(
        key.public_key().public_bytes(openssh, serialization.PublicFormat.OpenSSH) + b"\n"
    )


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("keypair: needs two paths; write keypair.py PRIVATE PUBLIC")
    try:
        main(*map(Path, sys.argv[1:]))
    except OSError as error:
        sys.exit(
            f"keypair: {error.filename}: cannot be written: {error.strerror}; give another path"
        )
