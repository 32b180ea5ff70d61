"""Settings of the connection to the brokers, of the topics, and of the format of their records."""

import os
import re
from importlib.util import find_spec
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import urlsplit

import numpy as np
from pydantic import Field, FilePath, SecretStr, field_validator, model_validator

from streampca.errors import describe_missing_package
from streampca.settings.base import Rules, Settings
from streampca.settings.field_paths import get_steps, parse_conditions, parse_paths, spell_path
from streampca.settings.plug_ins import BUILT_IN_FORMATS, FORMATS_WITH_SCHEMA, find_numpy_type, load_format

TOPIC_NAME = r"^[A-Za-z0-9._-]{1,249}$"  # what Kafka allows
KafkaName = Annotated[str, Field(pattern=TOPIC_NAME)]
_MECHANISMS_WITHOUT_PASSWORD = (None, "AWS_MSK_IAM", "GSSAPI")
_NUMBER_KINDS = "iuf"  # of NumPy's types: integers, unsigned integers and floats
# Over plain HTTP the secret could be read on the way, except on this machine.
_HTTPS_OR_LOOPBACK = r"^(https://|http://(localhost|127\.0\.0\.1)[:/])[^@\s]+$"


def _are_positions(field: str) -> bool:
    """Return whether each path of `field` begins with the position of a cell in a line of CSV."""
    beginnings = [spell_path(get_steps(path)[:1]) for path in parse_paths(field)]
    return all(re.fullmatch("[0-9]+", beginning) for beginning in beginnings)


def _has_only_numbers(format_name: str) -> bool:
    """Return whether values of a format are numbers without fields: npy, or a NumPy type."""
    return format_name == "npy" or find_numpy_type(format_name) is not None


def find_aws_region(bootstrap_servers: str) -> str | None:
    """Return the AWS region that the host names of MSK brokers contain.

    If they contain none, return the region that the environment names, or None.
    """
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
            host, _, port = server.strip().rpartition(":")  # without a colon, host is ""
            is_port = port.isdecimal() and 0 < int(port) < 65536
            is_url = "/" in host
            if not host or not is_port or is_url:
                raise ValueError(f"{server.strip()!r} is not host:port")
        return servers

    @property
    def client(self) -> str:
        """The Kafka client to use.

        If `kafka_client` is unset, it is confluent if that can be used, else kafka-python.
        """
        if self.kafka_client:
            return self.kafka_client
        is_installed = find_spec("confluent_kafka") is not None
        # The packages of confluent-kafka are built without Kerberos.
        can_use_confluent = is_installed and self.sasl_mechanism != "GSSAPI"
        return "confluent" if can_use_confluent else "kafka-python"

    @property
    def client_id(self) -> str:
        """The name by which brokers' logs, quotas and metrics know the client."""
        return "streampca"

    RULES: ClassVar[Rules] = (
        (lambda s: s.kafka_client == "confluent" and find_spec("confluent_kafka") is None,
         describe_missing_package("confluent-kafka", "worker", needed_by="kafka_client confluent")),
        (lambda s: s.security_protocol.startswith("SASL") and s.sasl_mechanism is None,
         "security_protocol {s.security_protocol} needs sasl_mechanism"),
        (lambda s: not s.security_protocol.startswith("SASL") and s.sasl_mechanism is not None,
         "sasl_mechanism needs security_protocol SASL_PLAINTEXT or SASL_SSL"),
        (lambda s: s.sasl_mechanism not in _MECHANISMS_WITHOUT_PASSWORD and not (s.sasl_username and s.sasl_password),
         "sasl_mechanism {s.sasl_mechanism} needs sasl_username and sasl_password"),
        (lambda s: s.sasl_mechanism == "OAUTHBEARER" and not s.sasl_token_url, "OAUTHBEARER needs sasl_token_url"),
        (lambda s: s.sasl_mechanism == "OAUTHBEARER" and find_spec("httpx") is None,
         describe_missing_package("httpx", "oauth", needed_by="sasl_mechanism OAUTHBEARER")),
        (lambda s: s.sasl_mechanism == "AWS_MSK_IAM" and find_spec("aws_msk_iam_sasl_signer") is None,
         describe_missing_package("aws-msk-iam-sasl-signer-python", "msk", needed_by="sasl_mechanism AWS_MSK_IAM")),
        (lambda s: s.sasl_mechanism == "AWS_MSK_IAM" and not find_aws_region(s.bootstrap_servers),
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
        """Add the defaults that contain `<topic>` to the given values, with the name of the topic in its place."""
        topic = str(values.get("topic", "<topic>"))  # pydantic reports a missing topic later
        defaults = {}
        for name, field in cls.model_fields.items():
            if "<topic>" in str(field.default):
                defaults[name] = field.default.replace("<topic>", topic)
        return defaults | values


class DeadLetterSettings(TopicSettings):
    dead_letter_topic: KafkaName | None = Field(None, description="Dead-letter topic, for records that are rejected.")

    RULES: ClassVar[Rules] = (
        (lambda s: s.dead_letter_topic == s.topic, "dead_letter_topic must not be the topic itself"),
    )


class LabelSettings(Settings):
    label: str = Field(
        "",
        description="Path to a string in each record, such as pump, that names it beside contributions; empty: none.",
    )

    @field_validator("label")
    @classmethod
    def _check_label(cls, label: str) -> str:
        if len(parse_paths(label)) > 1:
            raise ValueError("a record has one label: name one path")
        return label


class FormatSettings(Settings):
    format: str = Field(
        "json",
        description="Format of values: json, csv, npy, arrow, avro, protobuf, a NumPy type (float32, >f8, int16, …), "
        "or the name of a plug-in.",
    )
    field: str = Field("", description="Where the numbers are: paths such as payload.embedding or temp,hum.")
    where: str = Field("", description="Which records count: conditions such as type=cpu,__deleted!=true.")
    schema_registry_url: str | None = Field(None, description="URL of the schema registry, for avro and protobuf.")
    schema_registry_login: SecretStr | None = Field(None, description="Login at the schema registry, user:password.")

    @field_validator("field")
    @classmethod
    def _check_field(cls, field: str) -> str:
        parse_paths(field)
        return field

    @field_validator("where")
    @classmethod
    def _check_where(cls, where: str) -> str:
        parse_conditions(where)
        return where

    @field_validator("format")
    @classmethod
    def _check_format(cls, name: str) -> str:
        """Refuse a name that is not a built-in format, a raw format of numbers, or a plug-in."""
        dtype = find_numpy_type(name)
        is_raw = dtype is not None and dtype.kind in _NUMBER_KINDS and dtype.itemsize <= 8
        is_plug_in = load_format(name) is not None
        if name not in BUILT_IN_FORMATS and not is_raw and not is_plug_in:
            raise ValueError(
                f"neither {', '.join(BUILT_IN_FORMATS)} nor a NumPy type of numbers of 1 to 8 bytes (>f8, int16), "
                "and no installed package offers it"
            )
        return name

    @property
    def format_name(self) -> str:
        """The name of the format in checkpoints, which is the same for all spellings of a NumPy type.

        For example, f8 and <f8 are float64.
        """
        dtype = find_numpy_type(self.format)
        if dtype is None:
            return self.format
        is_big_endian = dtype.str[0] == ">"
        return dtype.str if is_big_endian else dtype.name  # NumPy's name does not say the byte order

    @property
    def field_with_names(self) -> str:
        """The setting `field`; "" for CSV, where `field` has positions of cells, and the dimensions have no names."""
        return "" if self.format == "csv" else self.field

    @property
    def vector_dtype(self) -> str:
        """Type of decoded vectors: float32 if `format` is a NumPy type whose numbers float32 holds, else float64."""
        dtype = find_numpy_type(self.format)
        holds_all_numbers = dtype is not None and np.can_cast(dtype, np.float32)
        return "float32" if holds_all_numbers else "float64"

    @field_validator("schema_registry_url")
    @classmethod
    def _check_registry_url(cls, urls: str | None) -> str | None:
        if not urls:  # a file may hold ""
            return urls
        for url in urls.split(","):
            parsed_url = urlsplit(url.strip())
            if parsed_url.scheme not in ("http", "https") or not parsed_url.hostname:
                raise ValueError("not http://host:port or https://host:port")
            if parsed_url.username or parsed_url.password:
                raise ValueError("set user and password as schema_registry_login")
        return urls

    @field_validator("schema_registry_login")
    @classmethod
    def _check_registry_login(cls, login: SecretStr | None) -> SecretStr | None:
        if login is None:
            return None
        user, _, password = login.get_secret_value().partition(":")
        if not user or not password:
            raise ValueError("not user:password")
        return login

    RULES: ClassVar[Rules] = (
        (lambda s: s.field != "" and _has_only_numbers(s.format),
         "format {s.format} has no fields: leave field unset"),
        (lambda s: s.where != "" and _has_only_numbers(s.format),
         "format {s.format} has no fields that conditions could be about: leave where unset"),
        (lambda s: s.format == "csv" and not _are_positions(s.field),
         "field={s.field}: format csv has no names, write positions of cells, from 0, such as 2,3,4"),
        (lambda s: s.field == "" and s.format == "protobuf", "format protobuf needs field"),
        (lambda s: s.schema_registry_url is None and s.format in FORMATS_WITH_SCHEMA,
         "format {s.format} needs schema_registry_url"),
    )  # fmt: skip
