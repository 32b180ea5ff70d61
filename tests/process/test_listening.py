"""Ports: an address that nothing can listen on is named; TLS of the sidecar and of a member, with new certificates."""

import os
import socket
import ssl
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import trustme
from prometheus_client import CollectorRegistry

from streampca.consumer_group.port import member_port
from streampca.errors import SettingsError
from streampca.process import http_server
from streampca.process.bearer_tokens import BearerTokens
from streampca.process.listening import format_address, listen
from streampca.process.tls_certificate import create_tls_context
from tests.errors import refusal
from tests.example_models import models_in, numbered
from tests.members import make_member
from tests.process.test_bearer_tokens import bearer, token_line
from tests.sidecar.process import SidecarProcess


class Certificates:
    """A server's certificate in files, and a client's."""

    def __init__(self, folder: Path) -> None:
        self.ca = trustme.CA()
        self.folder = folder
        self.cert = folder / "tls.crt"
        self.key = folder / "tls.key"
        self.renew(self.ca)

    def renew(self, ca: trustme.CA) -> None:
        issued = ca.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(self.key)
        self.cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        os.utime(self.cert, (time.time() + 5, time.time() + 5))

    def client(self, ca: trustme.CA | None = None, *, own: bool = False) -> httpx.Client:
        context = ssl.create_default_context()
        (ca or self.ca).configure_trust(context)
        if own:
            self.ca.issue_cert("client").configure_cert(context)
        return httpx.Client(verify=context, timeout=60)

    def server(self, tokens: BearerTokens | None = None) -> AbstractContextManager[str]:
        context = create_tls_context(self.folder)
        return member_port("127.0.0.1", 0, CollectorRegistry(), make_member(clock=time.monotonic), context, tokens)


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def assert_renewed_certificate_is_used(certificates: Certificates, url: str, headers: dict[str, str]) -> None:
    """Renew the certificate of a server, and check that new connections get the new certificate."""
    other = trustme.CA()
    with certificates.client() as old, certificates.client(other) as new:
        assert old.get(url, headers=headers).status_code == 200
        refusal(httpx.ConnectError, new.get, url)
        certificates.renew(other)
        assert new.get(url, headers=headers).status_code == 200
    with certificates.client() as old, pytest.raises(httpx.ConnectError):
        old.get(url)


@pytest.mark.slow
def test_the_sidecar_serves_with_a_certificate_and_reads_it_again(certificates: Certificates, tmp_path: Path) -> None:
    models_in(tmp_path / "store").save(numbered(1))
    with SidecarProcess(tmp_path / "store", tls_folder=str(tmp_path)) as sidecar:
        url = sidecar.wait_for_url()
        assert url.startswith("https://")
        assert_renewed_certificate_is_used(certificates, f"{url}/v1/model", {})
        assert sidecar.stop(60)[0] == 0


def test_a_members_port_serves_with_its_certificate_and_tokens(certificates: Certificates, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(token_line("metrics", "scraper"))
    with certificates.server(BearerTokens(tmp_path / "tokens")) as url:
        assert url.startswith("https://")
        with certificates.client() as client:
            assert client.get(url).status_code == 401
            assert client.get(url.replace("/metrics", "/healthz")).status_code == 200
        assert_renewed_certificate_is_used(certificates, url, bearer("scraper"))


def test_with_an_authority_for_clients_they_need_a_certificate(certificates: Certificates) -> None:
    certificates.ca.cert_pem.write_to_path(certificates.folder / "client-ca.crt")
    with certificates.server() as url:
        with certificates.client(own=True) as known_client:
            assert known_client.get(url).status_code == 200
        with certificates.client() as stranger, pytest.raises(httpx.TransportError):
            stranger.get(url)


def test_a_silent_client_does_not_block_another_client(certificates: Certificates) -> None:
    with certificates.server() as url:
        address = urlsplit(url)
        with socket.create_connection((address.hostname, address.port)), certificates.client() as client:
            assert client.get(url).status_code == 200


def test_a_client_that_does_not_shake_hands_is_disconnected(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "REQUEST_TIMEOUT_S", 0.2)
    with certificates.server() as url:
        address = urlsplit(url)
        with (
            socket.create_connection((address.hostname, address.port), timeout=50) as client,
            suppress(ConnectionError),
        ):
            assert client.recv(100) == b""


@pytest.mark.parametrize("spoil", [lambda c: c.key.write_text("x"), lambda c: c.cert.unlink()])
def test_unusable_files_end_a_start_and_later_change_nothing(
    certificates: Certificates, spoil: Callable[[Certificates], None]
) -> None:
    with certificates.server() as url:
        spoil(certificates)
        with certificates.client() as client:
            assert client.get(url).status_code == 200
    assert "cannot be used" in refusal(SettingsError, create_tls_context, certificates.folder)


@pytest.mark.parametrize(
    ("host", "cause"),
    [
        ("203.0.113.1", "Cannot assign requested address"),
        ("no.such.host.invalid", "no such host"),
        ("no such host", "no such host"),
    ],
)
def test_an_invalid_address_is_an_error_of_one_line(host: str, cause: str) -> None:
    assert refusal(SettingsError, listen, host, 0, "port") == f"cannot listen on {host}:0: {cause} (set host and port)"


@pytest.mark.parametrize(("ipv6", "host"), [(True, "[::]"), (False, "0.0.0.0")])  # noqa: S104
def test_all_addresses_are_of_ipv6_and_ipv4_or_only_of_ipv4_if_there_is_no_ipv6(
    monkeypatch: pytest.MonkeyPatch, ipv6: bool, host: str
) -> None:
    if ipv6 and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: ipv6)
    with listen("::", 0, "port") as listening:
        port = listening.getsockname()[1]
        assert format_address(listening) == f"{host}:{port}"
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
