"""Settings of the ports that the roles listen on."""

import ipaddress
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from streampca.settings.base import Settings, existing_file


class ListeningSettings(Settings):
    """The address to listen on, and who may ask."""

    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    tls_folder: Path | None = Field(None, description="Folder with tls.crt and tls.key; unset: no TLS.")
    tokens_file: Annotated[Path | None, AfterValidator(existing_file)] = Field(
        None, description="Hashed bearer tokens and their scopes; unset: no token is needed."
    )


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
