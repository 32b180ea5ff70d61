"""The TLS certificate of a server, in a folder whose files are read again when they change."""

import ssl
from pathlib import Path

import structlog

from streampca.errors import SettingsError
from streampca.process.file_versions import read_file_versions

log = structlog.get_logger()


class _ServerCertificate:
    """The certificate in a folder. If its files are replaced, new connections get the new certificate."""

    def __init__(self, folder: Path) -> None:
        """Raises `SettingsError` if the files cannot be used."""
        self._certificate = folder / "tls.crt"
        self._key = folder / "tls.key"
        self._files = [self._certificate, self._key]  # that are read again when they change
        self._client_authority: Path | None = None  # None: clients need no certificate
        client_authority = folder / "client-ca.crt"
        if client_authority.exists():
            self._client_authority = client_authority
            self._files.append(client_authority)
        try:
            self._versions = read_file_versions(self._files)
            # The server accepts connections with the first context, which is never replaced. Its callback then gives
            # each connection the second context, which is replaced when the files change.
            self.listening_context = self._read_context()
            self._current_context = self._read_context()
        except OSError as error:  # ssl.SSLError is a subclass
            raise SettingsError(f"{self._certificate} and {self._key} cannot be used for TLS: {error}") from None
        self.listening_context.sni_callback = self._set_current_context

    def _read_context(self) -> ssl.SSLContext:
        """Read the files, and return a TLS context with their content. Raises `OSError`."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=self._client_authority)
        context.load_cert_chain(self._certificate, self._key)
        context.verify_mode = ssl.CERT_REQUIRED if self._client_authority else ssl.CERT_NONE
        return context

    def _set_current_context(
        self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext
    ) -> None:
        """Give a new connection the certificate that the folder holds now. OpenSSL calls this for each connection."""
        try:
            versions = read_file_versions(self._files)
            if versions != self._versions:
                self._current_context = self._read_context()
                self._versions = versions
                log.info("certificate read again", file=str(self._certificate))
        except OSError as error:
            # Perhaps only one file is replaced yet. The next connection tries again.
            log.error("certificate not read again", file=str(self._certificate), error=str(error))
        connection.context = self._current_context


def create_tls_context(folder: Path | None) -> ssl.SSLContext | None:
    """Return a TLS context with the certificate in the folder, tls.crt and tls.key; without a folder, None.

    If the folder holds client-ca.crt, clients need a certificate of this authority. Raises `SettingsError`.
    """
    return None if folder is None else _ServerCertificate(folder).listening_context
