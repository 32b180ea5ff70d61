"""The certificates that connections to the brokers are secured with."""

import ssl
from typing import Any

from streampca.errors import SettingsError
from streampca.settings import KafkaSettings


def options(settings: KafkaSettings) -> dict[str, Any]:
    """What kafka-python must be told. It reads the files whenever it connects, so they may be replaced meanwhile."""
    return {
        "ssl_cafile": settings.ssl_cafile and str(settings.ssl_cafile),
        "ssl_certfile": settings.ssl_certfile and str(settings.ssl_certfile),
        "ssl_keyfile": settings.ssl_keyfile and str(settings.ssl_keyfile),
        "ssl_password": _password(settings),
        "ssl_check_hostname": settings.ssl_check_hostname,
    }


def check(settings: KafkaSettings) -> None:
    """Raises `SettingsError` for files that cannot be used, which kafka-python takes for an absent broker."""
    if "SSL" not in settings.security_protocol:
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if settings.ssl_cafile:
        try:
            context.load_verify_locations(settings.ssl_cafile)
        except OSError as error:
            raise SettingsError(f"ssl_cafile {settings.ssl_cafile} is no file of certificates, PEM: {error}") from None
    if settings.ssl_certfile:
        try:
            context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, _password(settings))
        except OSError as error:
            key = settings.ssl_keyfile or settings.ssl_certfile
            raise SettingsError(
                f"ssl_certfile {settings.ssl_certfile} cannot be used with the key in {key}: {error}; "
                "both must be PEM, belong together, and ssl_password must open the key"
            ) from None


def _password(settings: KafkaSettings) -> str:
    """Never None: for a key that has one OpenSSL would then ask the terminal, and wait."""
    return settings.ssl_password.get_secret_value() if settings.ssl_password else ""
