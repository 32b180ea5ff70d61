"""PEM certificates of a test authority: one for servers on 127.0.0.1, one for a client."""

from pathlib import Path
from typing import Self

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

KEY_PASSWORD = "key-secret"  # noqa: S105 - only of these test files


class Certificates:
    """The files in an existing folder; `make` writes them. The client's key has the password KEY_PASSWORD."""

    def __init__(self, folder: Path) -> None:
        self.authority = folder / "authority.pem"
        self.server, self.server_key = folder / "server.pem", folder / "server-key.pem"
        self.client, self.client_key = folder / "client.pem", folder / "client-key.pem"

    def make(self) -> Self:
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
