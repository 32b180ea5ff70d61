"""PEM certificates of a test authority: one for servers on 127.0.0.1, one for a client."""

from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

KEY_PASSWORD = "key-secret"  # noqa: S105 - only of these test files


@dataclass(frozen=True)
class Certificates:
    """The files in an existing folder; `make` writes them."""

    folder: Path

    @property
    def authority(self) -> Path:
        """The authority's certificate, which verifies both sides."""
        return self.folder / "authority.pem"

    @property
    def server(self) -> Path:
        """The server's certificate."""
        return self.folder / "server.pem"

    @property
    def server_key(self) -> Path:
        """The server's private key."""
        return self.folder / "server-key.pem"

    @property
    def client(self) -> Path:
        """The client's certificate."""
        return self.folder / "client.pem"

    @property
    def client_key(self) -> Path:
        """The client's private key; its password is KEY_PASSWORD."""
        return self.folder / "client-key.pem"

    def make(self) -> "Certificates":
        """Write all files, with a new authority."""
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.authority)
        for certificate, key, name, password in (
            (self.server, self.server_key, "127.0.0.1", None),
            (self.client, self.client_key, "client@example.org", KEY_PASSWORD),
        ):
            issued = authority.issue_cert(name)
            certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
            encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
            # Java reads only PKCS 8.
            private = load_pem_private_key(issued.private_key_pem.bytes(), None)
            key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
        return self
