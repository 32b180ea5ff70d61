"""Settings of the connection to the brokers, of the topics, and of the format of their records."""

import os
import re
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

import numpy as np
from pydantic import Field, FilePath, SecretStr, field_validator, model_validator

from streampca.errors import needs
from streampca.settings.base import Rules, Settings
from streampca.settings.field_paths import paths_of

TOPIC_NAME = r"^[A-Za-z0-9._-]{1,249}$"  # what Kafka allows
KafkaName = Annotated[str, Field(pattern=TOPIC_NAME)]
_MECHANISMS_WITHOUT_PASSWORD = (None, "AWS_MSK_IAM", "GSSAPI")
_FORMATS = ("json", "csv", "npy", "arrow", "avro", "protobuf")
# Over plain HTTP the secret could be read on the way, except on this machine.
_HTTPS_OR_LOOPBACK = r"^(https://|http://(localhost|127\.0\.0\.1)[:/])[^@\s]+$"


def _numpy_type(name: str) -> np.dtype[Any] | None:
    """Return the NumPy type with this name, or None if there is none."""
    try:
        return np.dtype(name)
    except Exception:  # NumPy raises TypeError, SyntaxError or a deprecation warning, depending on the name
        return None


def region_of(bootstrap_servers: str) -> str | None:
    """Return the AWS region of MSK brokers: the one in their host names, otherwise that of the environment."""
    match = re.search(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com", bootstrap_servers)
    if match:
        return match[1]
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


class KafkaSettings(Settings):
    bootstrap_servers: str = Field("localhost:9092", description="Bootstrap brokers, host:port,host:port.")
    kafka_client: Literal["kafka-python", "confluent"] | None = Field(
        None, description="Kafka client; unset: confluent, the faster one, where it is installed, else kafka-python."
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="Security protocol of the connections."
    )
    sasl_mechanism: (
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM", "GSSAPI"] | None
    ) = Field(None, description="SASL mechanism, with a SASL protocol.")
    sasl_username: str | None = Field(None, description="SASL user name; client id for OAUTHBEARER.")
    sasl_password: SecretStr | None = Field(None, description="SASL password; client secret for OAUTHBEARER.")
    sasl_token_url: str | None = Field(
        None, pattern=_HTTPS_OR_LOOPBACK, description="Token endpoint for OAUTHBEARER, https://host/path?scope=…"
    )
    ssl_cafile: FilePath | None = Field(None, description="CA certificates to verify brokers with, PEM.")
    ssl_certfile: FilePath | None = Field(None, description="Client certificate, PEM.")
    ssl_keyfile: FilePath | None = Field(None, description="Private key of the client certificate, PEM.")
    ssl_password: SecretStr | None = Field(None, description="Password of the private key.")

    @field_validator("bootstrap_servers")
    @classmethod
    def _check_servers(cls, servers: str) -> str:
        for server in servers.split(","):
            host, colon, port = server.strip().rpartition(":")
            if not host or not colon or not port.isdecimal() or not 0 < int(port) < 65536:
                raise ValueError(f"{server.strip()!r} is not host:port")
        return servers

    @property
    def client(self) -> str:
        """`kafka_client`; if it is unset, confluent where it can be used, otherwise kafka-python."""
        if self.kafka_client:
            return self.kafka_client
        is_installed = find_spec("confluent_kafka") is not None
        # The packages of confluent-kafka are built without Kerberos.
        can_use_confluent = is_installed and self.sasl_mechanism != "GSSAPI"
        return "confluent" if can_use_confluent else "kafka-python"

    RULES: ClassVar[Rules] = (
        (lambda s: s.kafka_client == "confluent" and find_spec("confluent_kafka") is None,
         needs("kafka_client confluent", "confluent-kafka", "worker")),
        (lambda s: s.security_protocol.startswith("SASL") and s.sasl_mechanism is None,
         "security_protocol {s.security_protocol} needs sasl_mechanism"),
        (lambda s: not s.security_protocol.startswith("SASL") and s.sasl_mechanism is not None,
         "sasl_mechanism needs security_protocol SASL_PLAINTEXT or SASL_SSL"),
        (lambda s: s.sasl_mechanism not in _MECHANISMS_WITHOUT_PASSWORD and not (s.sasl_username and s.sasl_password),
         "sasl_mechanism {s.sasl_mechanism} needs sasl_username and sasl_password"),
        (lambda s: s.sasl_mechanism == "OAUTHBEARER" and not s.sasl_token_url, "OAUTHBEARER needs sasl_token_url"),
        (lambda s: s.sasl_mechanism == "OAUTHBEARER" and find_spec("httpx") is None,
         needs("sasl_mechanism OAUTHBEARER", "httpx", "oauth")),
        (lambda s: s.sasl_mechanism == "AWS_MSK_IAM" and find_spec("aws_msk_iam_sasl_signer") is None,
         needs("sasl_mechanism AWS_MSK_IAM", "aws-msk-iam-sasl-signer-python", "msk")),
        (lambda s: s.sasl_mechanism == "AWS_MSK_IAM" and not region_of(s.bootstrap_servers),
         "sasl_mechanism AWS_MSK_IAM needs the environment variable AWS_REGION: bootstrap_servers name no region"),
        (lambda s: s.sasl_mechanism == "GSSAPI" and find_spec("gssapi") is None,
         "sasl_mechanism GSSAPI needs the package gssapi and Kerberos' libraries: pip install gssapi"),
        (lambda s: "SSL" not in s.security_protocol and any((s.ssl_cafile, s.ssl_certfile, s.ssl_keyfile)),
         "ssl_cafile, ssl_certfile and ssl_keyfile need security_protocol SSL or SASL_SSL"),
        (lambda s: s.ssl_keyfile is not None and s.ssl_certfile is None, "ssl_keyfile needs ssl_certfile"),
    )  # fmt: skip


class TopicSettings(Settings):
    """The topic. Defaults of other settings may contain `<topic>`."""

    topic: KafkaName = Field(description="Topic that holds the vectors.")

    @field_validator("topic")
    @classmethod
    def _check_topic(cls, topic: str) -> str:
        if topic in (".", ".."):  # Kafka refuses these names, too
            raise ValueError("not a valid topic name")
        return topic

    @model_validator(mode="before")
    @classmethod
    def _put_topic_into_defaults(cls, values: dict[str, Any]) -> dict[str, Any]:
        topic = str(values.get("topic", "<topic>"))  # a missing topic is reported later
        templates = {name: field.default for name, field in cls.model_fields.items() if "<topic>" in str(field.default)}
        defaults = {name: template.replace("<topic>", topic) for name, template in templates.items()}
        return defaults | values


class DeadLetterSettings(TopicSettings):
    dead_letter_topic: KafkaName | None = Field(None, description="Dead-letter topic, for records that are rejected.")

    RULES: ClassVar[Rules] = (
        (lambda s: s.dead_letter_topic == s.topic, "dead_letter_topic must not be the topic itself"),
    )


class FormatSettings(Settings):
    format: str = Field(
        "json",
        description="Format of values: json, csv, npy, arrow, avro, protobuf, or a NumPy type: float32, >f8, int16, …",
    )
    field: str = Field("", description="Where the numbers are: paths such as payload.embedding or temp,hum.")
    schema_registry_url: str | None = Field(None, description="URL of the schema registry, for avro and protobuf.")
    schema_registry_login: SecretStr | None = Field(None, description="Login at the schema registry, user:password.")

    @field_validator("field")
    @classmethod
    def _check_field(cls, field: str) -> str:
        paths_of(field)
        return field

    @field_validator("format")
    @classmethod
    def _check_format(cls, name: str) -> str:
        dtype = _numpy_type(name)
        is_raw = dtype is not None and dtype.kind in "iuf" and dtype.itemsize <= 8
        if name not in _FORMATS and not is_raw:
            raise ValueError(f"neither {', '.join(_FORMATS)} nor a NumPy type of numbers of 1 to 8 bytes (>f8, int16)")
        return name

    @property
    def format_name(self) -> str:
        """`format`, with the same name for each spelling of a NumPy type: float64 for f8 and <f8.

        Checkpoints hold this name and are refused under another.
        """
        dtype = _numpy_type(self.format)
        if dtype is None:
            return self.format
        is_big_endian = dtype.str[0] == ">"
        return dtype.str if is_big_endian else dtype.name  # NumPy's name does not say the byte order

    @property
    def vector_dtype(self) -> str:
        """Type of decoded vectors: float32 if it holds all numbers of a raw format exactly, otherwise float64."""
        dtype = _numpy_type(self.format)
        fits = dtype is not None and np.can_cast(dtype, np.float32)
        return "float32" if fits else "float64"

    @field_validator("schema_registry_url")
    @classmethod
    def _check_registry_url(cls, urls: str | None) -> str | None:
        for url in urls.split(",") if urls else ():
            parts = urlsplit(url.strip())
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("not http://host:port or https://host:port")
            if parts.username or parts.password:
                raise ValueError("set user and password as schema_registry_login")
        return urls

    @field_validator("schema_registry_login")
    @classmethod
    def _check_registry_login(cls, login: SecretStr | None) -> SecretStr | None:
        if login is None:
            return None
        user, colon, password = login.get_secret_value().partition(":")
        if not (user and colon and password):
            raise ValueError("not user:password")
        return login

    RULES: ClassVar[Rules] = (
        (lambda s: s.field != "" and (s.format == "npy" or _numpy_type(s.format) is not None),
         "format {s.format} has no fields: leave field unset"),
        (lambda s: s.field == "" and s.format == "protobuf", "format protobuf needs field"),
        (lambda s: s.schema_registry_url is None and s.format in ("avro", "protobuf"),
         "format {s.format} needs schema_registry_url"),
    )  # fmt: skip
