"""Is a SuperLink well, and by which way is it reached: past proxies on this machine."""

import http.client
import os
import re
import ssl
import urllib.request
from importlib.util import find_spec
from pathlib import Path

from common.errors import GreedyfedError

EXPIRED = 10  # OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED
#: This machine, which no proxy knows the way to.
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class SuperLinkError(GreedyfedError):
    """The SuperLink cannot be reached as asked."""


def check_superlink(address: str, ca_file: Path | None) -> None:
    """Ask a SuperLink whether it is well, in plain text without the certificate of its CA.

    Raises:
        SuperLinkError: naming the address or the file, and what is wrong with it.
    """
    host, _, port = address.rpartition(":")
    is_host = re.fullmatch(r"\[[0-9a-fA-F:.]+\]|([^\s:/.]{1,63}\.)*[^\s:/.]{1,63}", host)
    if not is_host or not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        raise SuperLinkError(
            f"--superlink {address}: is not HOST:PORT; write for example 127.0.0.1:9093"
        )
    if not _is_here(host) and "*" not in no_proxy() and (names := sorted(refused_proxies())):
        raise SuperLinkError(
            f"--superlink {address}: {names[0]} names a proxy that is not of HTTP, which Flower "
            "cannot use as it is; for SOCKS 5 pip install 'httpx[socks]', or unset it"
        )
    trust = None
    if ca_file:
        try:
            trust = ssl.create_default_context(cafile=ca_file)
        except OSError as error:
            why = "holds no PEM certificate" if isinstance(error, ssl.SSLError) else error.strerror
            raise SuperLinkError(
                f"--root-certificates {ca_file}: {why}; give the certificate of the SuperLink's CA"
            ) from error
    try:
        ask_health(address, 10, trust)
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: no host's name
        reason = getattr(error, "reason", error)
        why, hint = f"no answer: {reason}", "is it running, and is this its address?"
        if scheme := _proxied(host, trust):
            why = f"no answer by way of the proxy that {scheme}_proxy names: {reason}"
            hint = "mend the proxy, or add the host to no_proxy to go past it"
        if isinstance(reason, ssl.SSLCertVerificationError):
            why, hint = (
                f"its certificate is refused: {reason.verify_message}",
                (f"give the certificate of its CA in place of {ca_file}, or a name that it is for"),
            )
            if reason.verify_code == EXPIRED:
                hint = "let its operator make a new one"
        elif isinstance(reason, ssl.SSLError):
            why, hint = "no answer in TLS", "if it speaks plain text, say --insecure"
        elif isinstance(reason, http.client.HTTPException | ConnectionResetError):
            why, hint = "no answer in plain text", "if it uses TLS, give --root-certificates"
        raise SuperLinkError(f"--superlink {address}: {why}; {hint}") from error


def ask_health(address: str, seconds: float, trust: ssl.SSLContext | None = None) -> None:
    """Raise an exception if a SuperLink is not well; in plain text without `trust`.

    One on this machine is asked past all proxies, others as the environment says.
    """
    past_proxies = [urllib.request.ProxyHandler({})] if _is_here(address.rpartition(":")[0]) else []
    opener = urllib.request.build_opener(*past_proxies, urllib.request.HTTPSHandler(context=trust))
    opener.open(f"http{'s' if trust else ''}://{address}/health", timeout=seconds).close()


def _is_here(host: str) -> bool:
    return host.strip("[]").lower() in LOOPBACK


def _proxied(host: str, trust: ssl.SSLContext | None) -> str:
    """The scheme by whose proxy a host is asked; empty if by none."""
    scheme, found = "https" if trust else "http", urllib.request.getproxies()
    past = _is_here(host) or scheme not in found or urllib.request.proxy_bypass(host)
    return "" if past else scheme


def refused_proxies() -> set[str]:
    """The variables of the environment for whose proxies Flower's HTTP client raises.

    It does so for hosts too that are reached past them.
    """
    known = {"http", "https"} | ({"socks5", "socks5h"} if find_spec("socksio") else set())
    names = {f"{kind}_proxy" for kind in ("http", "https", "all")}
    return {
        name
        for name, proxy in os.environ.items()
        if name.lower() in names and "://" in proxy and proxy.split("://")[0].lower() not in known
    }


def no_proxy() -> str:
    """The hosts that are reached past all proxies: those of the environment, and this machine."""
    texts = (os.environ.get(key, "") for key in ("no_proxy", "NO_PROXY"))
    hosts = [host.strip() for text in texts for host in text.split(",")]
    # A star is one only by itself.
    return "*" if "*" in hosts else ",".join(filter(None, dict.fromkeys([*hosts, *LOOPBACK])))
