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
_WITHOUT_PASSWORD = (None, "AWS_MSK_IAM", "GSSAPI")
_FORMATS = ("json", "csv", "npy", "arrow", "avro", "protobuf")
_NO_PLAIN_HTTP = r"^(https://|http://(localhost|127\.0\.0\.1)[:/])[^@\s]+$"  # only this machine may see the secret


def _type_named(name: str) -> np.dtype[Any] | None:
    """The NumPy type with this name, of any kind."""
    try:
        return np.dtype(name)
    except Exception:  # of several kinds, also a warning
        return None


def region_of(bootstrap_servers: str) -> str | None:
    """The region of brokers of AWS MSK: the one in their names, else the environment's."""
    named = re.search(r"\.kafka(?:-serverless)?\.([a-z0-9-]+)\.amazonaws\.com", bootstrap_servers)
    return named[1] if named else os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")


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
        None, pattern=_NO_PLAIN_HTTP, description="Token endpoint for OAUTHBEARER, https://host/path?scope=…"
    )
    ssl_cafile: FilePath | None = Field(None, description="CA certificates to verify brokers with, PEM.")
    ssl_certfile: FilePath | None = Field(None, description="Client certificate, PEM.")
    ssl_keyfile: FilePath | None = Field(None, description="Private key of the client certificate, PEM.")
    ssl_password: SecretStr | None = Field(None, description="Password of the private key.")

    @field_validator("bootstrap_servers")
    @classmethod
    def _names_hosts_and_ports(cls, servers: str) -> str:
        for server in servers.split(","):
            host, colon, port = server.strip().rpartition(":")
            if not host or not colon or not port.isdecimal() or not 0 < int(port) < 65536:
                raise ValueError(f"{server.strip()!r} is not host:port")
        return servers

    @property
    def client(self) -> str:
        """`kafka_client`, or what it is if unset. Packages of confluent-kafka are built without Kerberos (GSSAPI)."""
        has_confluent = find_spec("confluent_kafka") is not None and self.sasl_mechanism != "GSSAPI"
        return self.kafka_client or ("confluent" if has_confluent else "kafka-python")

    RULES: ClassVar[Rules] = (
        (lambda s: s.kafka_client == "confluent" and find_spec("confluent_kafka") is None,
         needs("kafka_client confluent", "confluent-kafka", "worker")),
        (lambda s: s.security_protocol.startswith("SASL") and s.sasl_mechanism is None,
         "security_protocol {s.security_protocol} needs sasl_mechanism"),
        (lambda s: not s.security_protocol.startswith("SASL") and s.sasl_mechanism is not None,
         "sasl_mechanism needs security_protocol SASL_PLAINTEXT or SASL_SSL"),
        (lambda s: s.sasl_mechanism not in _WITHOUT_PASSWORD and not (s.sasl_username and s.sasl_password),
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
    """The topic, which defaults of other settings may name."""

    topic: KafkaName = Field(description="Topic that holds the vectors.")

    @field_validator("topic")
    @classmethod
    def _is_no_folder(cls, topic: str) -> str:
        if topic in (".", ".."):
            raise ValueError("not a valid topic name")
        return topic

    @model_validator(mode="before")
    @classmethod
    def _name_topic(cls, values: dict[str, Any]) -> dict[str, Any]:
        defaults = {name: field.default for name, field in cls.model_fields.items() if "<topic>" in str(field.default)}
        topic = str(values.get("topic", "<topic>"))
        return {name: default.replace("<topic>", topic) for name, default in defaults.items()} | values


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
    def _is_paths(cls, field: str) -> str:
        paths_of(field)
        return field

    @field_validator("format")
    @classmethod
    def _is_known(cls, name: str) -> str:
        kind = _type_named(name)
        if name not in _FORMATS and (kind is None or kind.kind not in "iuf" or kind.itemsize > 8):
            raise ValueError(f"neither {', '.join(_FORMATS)} nor a NumPy type of numbers of 1 to 8 bytes (>f8, int16)")
        return name

    @property
    def format_name(self) -> str:
        """`format`, with one name for each NumPy type: float64 for f8 and <f8. Models depend on it."""
        kind = _type_named(self.format)
        return self.format if kind is None else kind.str if kind.str[0] == ">" else kind.name

    @property
    def vector_dtype(self) -> str:
        """float32 for raw numbers that it holds exactly, else float64."""
        kind = _type_named(self.format)
        return "float64" if kind is None or not np.can_cast(kind, np.float32) else "float32"

    @field_validator("schema_registry_url")
    @classmethod
    def _is_http_without_password(cls, urls: str | None) -> str | None:
        for url in urls.split(",") if urls else ():
            parts = urlsplit(url.strip())
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("not http://host:port or https://host:port")
            if parts.username or parts.password:
                raise ValueError("set user and password as schema_registry_login")
        return urls

    @field_validator("schema_registry_login")
    @classmethod
    def _is_user_and_password(cls, login: SecretStr | None) -> SecretStr | None:
        if login is not None and not all(login.get_secret_value().partition(":")):
            raise ValueError("not user:password")
        return login

    RULES: ClassVar[Rules] = (
        (lambda s: s.field != "" and (s.format == "npy" or _type_named(s.format) is not None),
         "format {s.format} has no fields: leave field unset"),
        (lambda s: s.field == "" and s.format == "protobuf", "format protobuf needs field"),
        (lambda s: s.schema_registry_url is None and s.format in ("avro", "protobuf"),
         "format {s.format} needs schema_registry_url"),
    )  # fmt: skip
