"""The Host headers that a sidecar answers: against DNS rebinding, by which a web page elsewhere could read it."""

import ipaddress

from streampca.settings import ServeSettings

_LOCAL = ("localhost", "127.0.0.1", "[::1]")


def allowed_hosts(settings: ServeSettings) -> frozenset[str] | None:
    """Names and addresses without ports, in lower case; None: any."""
    if settings.allowed_hosts is not None:
        names = [name.strip().lower() for name in settings.allowed_hosts.split(",")]
        return None if "*" in names else frozenset(names)
    if not _is_loopback(settings.host):
        return None
    host = settings.host.lower()
    return frozenset((*_LOCAL, f"[{host}]" if ":" in host else host))


def host_name(header: bytes) -> str:
    """A Host header without its port."""
    text = header.decode("latin-1").lower()
    return text[: text.find("]") + 1] if text.startswith("[") else text.partition(":")[0]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
