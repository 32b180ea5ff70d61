"""Settings that all processes have: log, store, and the address to listen on."""

import ipaddress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field, FilePath, field_validator

from streampca.errors import describe_missing_package
from streampca.settings import store_url
from streampca.settings.base import Rules, Settings
from streampca.settings.kafka import TopicSettings

Port = Annotated[int, Field(ge=0, le=65535)]


class LogSettings(Settings):
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Lowest level that is logged.")


class StoreSettings(TopicSettings, LogSettings):
    """Settings of every command that opens the store."""

    store: Annotated[
        str,
        BeforeValidator(lambda location: str(location) if isinstance(location, Path) else location),
        AfterValidator(store_url.validate_location),
    ] = Field(
        "streampca-store",
        min_length=1,
        description="Folder of checkpoints and models, or a bucket: s3://, gs:// or az://bucket/prefix, "
        "or the URL of a plug-in.",
    )

    RULES: ClassVar[Rules] = (
        (lambda s: store_url.is_bucket(s.store) and find_spec("obstore") is None,
         describe_missing_package("obstore", "object-store", needed_by="a store at a URL")),
    )  # fmt: skip


class ListeningSettings(Settings):
    """Settings of the HTTP port: the address to listen on, TLS, and who may send requests."""

    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on; ::, all of IPv6 and IPv4.")
    tls_folder: Path | None = Field(None, description="Folder with tls.crt and tls.key; unset: no TLS.")
    tokens_file: FilePath | None = Field(
        None, description="Hashed bearer tokens and their scopes; unset: no token is needed."
    )

    @field_validator("host")
    @classmethod
    def _check_host(cls, host: str) -> str:
        if "/" in host:
            raise ValueError("not the name or address of a host, which is written without http://")
        return host


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
