"""TLS: private authorities, certificates of clients, and ports that speak something else."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme
from conftest import MakeClient

from leasehold import InvalidRequest, Unavailable


@pytest.fixture(params=["threads", "asyncio"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def ca_file(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tls") / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return str(path)


@pytest.fixture(scope="module")
def client_cert(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tls") / "client.pem"
    authority.issue_cert("client.example").private_key_and_cert_chain_pem.write_to_path(str(path))
    return str(path)


@pytest.fixture(scope="module")
def port(authority: trustme.CA) -> Iterator[int]:
    """A service that asks its callers for a certificate."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            problem = {"type": "misconfigured", "status": 500, "detail": "It was reached."}
            content = json.dumps(problem).encode()
            self.send_response(500)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *arguments: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None: ...

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    server = Server(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def said(make_client: MakeClient, url: str, **arguments: Any) -> str:
    with pytest.raises((Unavailable, InvalidRequest)) as error:
        make_client(url, **arguments).try_acquire("key")
    return str(error.value)


def test_private_authority_and_own_certificate_are_used(
    make_client: MakeClient, port: int, ca_file: str, client_cert: str
) -> None:
    from leasehold import Misconfigured

    for cert in (client_cert, (client_cert, client_cert)):
        client = make_client(f"https://127.0.0.1:{port}", ca_file=ca_file, client_cert=cert)
        with pytest.raises(Misconfigured, match="It was reached"):
            client.try_acquire("key")


def test_untrusted_authority_is_told_with_its_remedy(make_client: MakeClient, port: int) -> None:
    text = said(make_client, f"https://127.0.0.1:{port}")
    assert "CERTIFICATE_VERIFY_FAILED" in text
    assert "ca_file" in text


def test_certificate_that_is_missing_reaches_no_service(make_client: MakeClient, port: int, ca_file: str) -> None:
    assert "no answer from" in said(make_client, f"https://127.0.0.1:{port}", ca_file=ca_file)


def test_http_to_a_tls_port_is_told(make_client: MakeClient, port: int) -> None:
    assert "https:// in the URL" in said(make_client, f"http://127.0.0.1:{port}")


def test_tls_to_an_http_port_is_told(make_client: MakeClient, service: str) -> None:
    assert "http:// in the URL" in said(make_client, service.replace("http:", "https:"))


def test_file_without_certificates_is_named(
    make_client: MakeClient, service: str, tmp_path: Path, ca_file: str
) -> None:
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    for path in (empty, tmp_path / "missing.pem"):
        with pytest.raises(InvalidRequest, match=rf"ca_file: .*{path.name}") as error:
            make_client(service, ca_file=path)
        assert error.value.field == "ca_file"
        with pytest.raises(InvalidRequest, match=rf"client_cert: .*{path.name}"):
            make_client(service, client_cert=path)
    for maker in ("make_pool", "make_client"):
        with pytest.raises((InvalidRequest, TypeError), match=maker):
            make_client(service, ca_file=ca_file, **{maker: object})
