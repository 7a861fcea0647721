"""Exit with 0 if a service answers: healthcheck.py URL [CA certificate]. No proxy is asked.

https://… and http://… ask an API at the port it serves. grpc://… asks Flower's gRPC health server,
all that a flower-superexec offers; it says that the process is alive.
"""

import ssl
import sys
from urllib.parse import urlsplit
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

SECONDS = 5.0


def check(url: str, ca_file: str | None = None) -> None:
    """Raise an exception if the service does not answer, or not that it serves."""
    if urlsplit(url).scheme == "grpc":
        _check_grpc(urlsplit(url).netloc)
    else:
        tls = ssl.create_default_context(cafile=ca_file) if ca_file else None
        opener = build_opener(ProxyHandler({}), HTTPSHandler(context=tls))
        opener.open(url, timeout=SECONDS).close()


def _check_grpc(address: str) -> None:
    import grpc  # the gateway has no grpcio
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    options = [("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(address, options=options) as channel:
        request = health_pb2.HealthCheckRequest()
        answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=SECONDS)
    if answer.status != health_pb2.HealthCheckResponse.SERVING:
        raise ConnectionError(f"{address}: not serving")


if __name__ == "__main__":
    check(*sys.argv[1:])
