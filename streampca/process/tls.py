"""The certificates of a server, read again when their files change."""

import ssl
from pathlib import Path

import structlog

from streampca.errors import SettingsError

log = structlog.get_logger()


def server_context(folder: Path | None) -> ssl.SSLContext | None:
    """A context whose new connections have the certificate that the folder holds then; None without a folder.

    It holds tls.crt and tls.key, named as in a Secret of Kubernetes. If there is a client-ca.crt at the start, clients
    must have a certificate that it has signed. Raises `SettingsError`.
    """
    if folder is None:
        return None
    cert, key, client_ca = folder / "tls.crt", folder / "tls.key", folder / "client-ca.crt"
    files = [cert, key, *([client_ca] if client_ca.exists() else [])]

    def read() -> ssl.SSLContext:
        with_ca = client_ca in files
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=client_ca if with_ca else None)
        context.load_cert_chain(cert, key)
        context.verify_mode = ssl.CERT_REQUIRED if with_ca else ssl.CERT_NONE
        return context

    def versions() -> list[tuple[int, int]]:
        return [(stat.st_mtime_ns, stat.st_ino) for stat in (path.stat() for path in files)]

    try:
        version, current, context = versions(), read(), read()
    except OSError as error:  # ssl.SSLError is one, too
        raise SettingsError(f"{cert} and {key} cannot be used for TLS: {error}") from None

    def choose(connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        nonlocal version, current
        try:
            if (newest := versions()) != version:
                current, version = read(), newest
                log.info("certificate read again", file=str(cert))
        except OSError as error:  # the files may be changed one after the other
            log.error("certificate not read again", file=str(cert), error=str(error))
        connection.context = current

    context.sni_callback = choose
    return context
