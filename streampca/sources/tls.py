"""The certificates that connections to the brokers are secured with."""

import ssl

from streampca.errors import SettingsError
from streampca.settings import KafkaSettings


def context_of(settings: KafkaSettings) -> ssl.SSLContext | None:
    """How the brokers are verified, and how we prove who we are; None without TLS.

    Raises `SettingsError` when a file cannot be used. kafka-python would find that out whenever it connects and report
    a broker that does not answer; and a key with a password that is not given it would let OpenSSL ask the terminal.
    """
    if "SSL" not in settings.security_protocol:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.ssl_check_hostname
    if settings.ssl_cafile:
        try:
            context.load_verify_locations(settings.ssl_cafile)
        except OSError as error:
            raise SettingsError(f"ssl_cafile {settings.ssl_cafile} is no file of certificates, PEM: {error}") from None
    else:
        context.load_default_certs()
    if settings.ssl_certfile:
        password = settings.ssl_password.get_secret_value() if settings.ssl_password else ""
        try:
            context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, password)
        except OSError as error:
            key = settings.ssl_keyfile or settings.ssl_certfile
            raise SettingsError(
                f"ssl_certfile {settings.ssl_certfile} cannot be used with the key in {key}: {error}; "
                "both must be PEM, belong together, and ssl_password must open the key"
            ) from None
    return context
