"""An address that nothing can listen on is an error that names the setting to change."""

import socket

import pytest

from streampca.errors import SettingsError
from streampca.process.listening import address_of, listen


def test_a_port_in_use_is_named() -> None:
    with listen("127.0.0.1", 0, "metrics_port") as other:
        port = other.getsockname()[1]
        assert address_of(other) == f"127.0.0.1:{port}"
        with pytest.raises(SettingsError) as error:
            listen("127.0.0.1", port, "metrics_port")
    cause = "Address already in use (stop the process there or set metrics_port, 0 for any)"
    assert str(error.value) == f"cannot listen on 127.0.0.1:{port}: {cause}"


@pytest.mark.parametrize(
    ("host", "port", "cause"),
    [
        ("203.0.113.1", 0, "Cannot assign requested address"),
        ("no.such.host.invalid", 0, "no such host"),
        ("no such host", 0, "no such host"),
        ("127.0.0.1", 70000, "bind(): port must be 0-65535."),
    ],
)
def test_an_invalid_address_is_an_error_of_one_line(host: str, port: int, cause: str) -> None:
    with pytest.raises(SettingsError) as error:
        listen(host, port, "port")
    assert str(error.value) == f"cannot listen on {host}:{port}: {cause} (set host and port)"


def test_on_all_addresses_of_ipv6_it_listens_for_ipv4_too() -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    with listen("::", 0, "port") as listening:
        port = listening.getsockname()[1]
        assert address_of(listening) == f"[::]:{port}"
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
