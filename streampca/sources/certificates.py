"""Checks the TLS certificates in the settings before a client uses them."""

import ssl

from streampca.errors import SettingsError
from streampca.settings.kafka import KafkaSettings


def check_certificates(settings: KafkaSettings) -> None:
    """Raise `SettingsError` for files that cannot be used, which the clients report as an absent broker."""
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
            context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, key_password(settings))
        except OSError as error:
            key = settings.ssl_keyfile or settings.ssl_certfile
            raise SettingsError(
                f"ssl_certfile {settings.ssl_certfile} cannot be used with the key in {key}: {error}; "
                "both must be PEM, belong together, and ssl_password must open the key"
            ) from None


def key_password(settings: KafkaSettings) -> str:
    """The password of the private key; never None, for which OpenSSL would prompt on the terminal."""
    return settings.ssl_password.get_secret_value() if settings.ssl_password else ""
