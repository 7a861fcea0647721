"""The names of a TLS certificate, as OpenSSL's subjectAltName: names.py NAME,NAME,…"""

import re
import sys
from ipaddress import ip_address

LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
HOST = re.compile(rf"({LABEL}\.)*(?![0-9]+$){LABEL}")


def subject_alt_name(names: str) -> str:
    """DNS:… or IP:… for each of the names, separated by commas.

    Raises:
        ValueError: a name that is neither a host's nor an address.
    """
    entries = []
    for name in filter(None, map(str.strip, names.split(","))):
        try:
            entries.append(f"IP:{ip_address(name)}")
        except ValueError:
            if len(name) > 253 or not HOST.fullmatch(name):
                raise ValueError(
                    f"{name!r} is neither a host name nor an IP address; "
                    "write for example fl.example.org,192.0.2.7"
                ) from None
            entries.append(f"DNS:{name}")
    return ",".join(entries)


if __name__ == "__main__":
    try:
        print(subject_alt_name(sys.argv[1]))
    except ValueError as error:
        sys.exit(f"GATEWAY_NAMES: {error}")
