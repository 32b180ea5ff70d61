"""Settings: their origins and precedence, and errors that list every mistake without showing secrets.

The store is a folder or the URL of a bucket.
"""

import os
import re
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from streampca import settings
from streampca.cli.worker_config import create_worker_config
from streampca.errors import SettingsError
from streampca.settings.base import MASK, Settings, collect_fields
from streampca.settings.commands import (
    ResetSettings,
    ServeSettings,
    TransformSettings,
    WorkerSettings,
    parse_iso_time_ms,
)
from streampca.settings.given_values import find_unknown_variables
from streampca.stores.choice import open_parent_store, open_store
from streampca.stores.directory import DirectoryStore
from tests.errors import refusal

REQUIRED = {"topic": "readings", "dimensions": 8, "components": 2}
TOKENS = {
    "security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", "sasl_username": "me", "sasl_password": "secret",
    "sasl_token_url": "https://login.example/token?scope=kafka",
}  # fmt: skip
MSK = {
    "security_protocol": "SASL_SSL", "sasl_mechanism": "AWS_MSK_IAM",
    "bootstrap_servers": "b-1.a.b.c2.kafka.eu-west-1.amazonaws.com:9098,b-2.a.b.c2.kafka.eu-west-1.amazonaws.com:9098",
}  # fmt: skip
VALID_STORES = {
    "s3://bucket": "s3://bucket",
    "s3://bucket/": "s3://bucket",
    "S3://bucket/a/b/": "s3://bucket/a/b",
    "gs://my.bucket_1/a": "gs://my.bucket_1/a",
    "az://container/a": "az://container/a",
    "folder": "folder",
    "/var/lib/streampca": "/var/lib/streampca",
    "a folder/..": "a folder/..",
}
INVALID_STORES = {
    "s3://": "the bucket is not valid",
    "s3:///a": "the bucket is not valid",
    "s3://bucket?versionId=hush-hush": "the bucket is not valid",
    "az://container/a?sig=hush-hush": "the prefix is not valid",
    "s3://bucket/a//b": "the prefix is not valid",
    "s3://bucket/../b": "the prefix is not valid",
    "s3://bucket/a b": "the prefix is not valid",
    "s3://key:hush-hush@bucket/a": "credentials do not belong into the URL: set AWS_ACCESS_KEY_ID",
    "gs://hush-hush@bucket/a": "credentials do not belong into the URL: set GOOGLE_APPLICATION_CREDENTIALS",
    "http://host/hush?hush-hush": "begins with s3://, gs:// or az://",
    "hdfs://host/a": "begins with s3://, gs:// or az://",
    "s3a://bucket/a": "begins with s3://, gs:// or az://",
}


@pytest.fixture(autouse=True)
def _clear_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in os.environ if n.startswith("STREAMPCA_") or n in ("AWS_REGION", "AWS_DEFAULT_REGION")]:
        monkeypatch.delenv(name)


def find_mistakes(kind: type[Settings] = WorkerSettings, config: Path | None = None, **options: object) -> list[str]:
    _, mistakes = kind.explain(config, **options)
    return mistakes


def explain(kind: type[Settings], config: Path | None = None, **options: object) -> dict[str, tuple[str, str]]:
    """Return the effective value and the origin of each setting, by its name."""
    settings, _ = kind.explain(config, **options)
    return {setting.name: (setting.value, setting.origin) for setting in settings}


def test_options_override_the_environment_which_overrides_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "streampca.toml"
    file.write_text('topic = "file"\ngroup_id = "file"\nformat = "npy"\ndimensions = 9\ncomponents = 3\n')
    monkeypatch.setenv("STREAMPCA_CONFIG", str(file))
    monkeypatch.setenv("STREAMPCA_TOPIC", "environment")
    monkeypatch.setenv("STREAMPCA_GROUP_ID", "environment")
    monkeypatch.setenv("STREAMPCA_STORE", "")  # counts as unset
    settings = WorkerSettings.read(topic="option", group_id=None)
    assert (settings.topic, settings.group_id, settings.format) == ("option", "environment", "npy")
    assert explain(WorkerSettings, topic="option").items() >= {
        "topic": ("option", "option --topic"), "group_id": ("environment", "environment STREAMPCA_GROUP_ID"),
        "format": ("npy", f"file {file}"), "store": ("streampca-store", "default"),
        "oversampling": ("", "default"),  # it depends on the components
    }.items()  # fmt: skip
    other = tmp_path / "other.toml"
    other.write_text('format = "float32"\ndimensions = 9\ncomponents = 3\n')
    assert WorkerSettings.read(config=other).format == "float32"


def test_default_groups_contain_the_topic_and_emit_is_a_list_of_fields() -> None:
    assert ResetSettings(topic="readings").group_id == "streampca-readings"
    transform = TransformSettings(topic="readings", output_topic="projected", emit="score, p")
    assert (transform.group, transform.emitted) == ("streampca-transform-readings", ("score", "p"))
    assert explain(WorkerSettings, **REQUIRED)["group_id"] == ("streampca-readings", "default")
    assert explain(WorkerSettings)["group_id"] == ("streampca-<topic>", "default")


def test_all_mistakes_are_reported_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMPCA_METRICS_PORT", "http")
    monkeypatch.setenv("STREAMPCA_DEAD_LETTER_TOPICS", "dead")
    mistakes = find_mistakes(
        topic="a/b", components=5, dimensions=4, format="npy", field="v", sasl_mechanism="PLAIN", dtype="int8"
    )
    expected = [
        "STREAMPCA_DEAD_LETTER_TOPICS is not a setting: did you mean STREAMPCA_DEAD_LETTER_TOPIC?",
        "topic: ",
        "dtype: ",
        "metrics_port: ",
        "sasl_mechanism needs security_protocol",
        "sasl_mechanism PLAIN needs sasl_username",
        "components (5) cannot exceed dimensions (4)",
        "format npy has no fields",
    ]
    assert len(mistakes) == len(expected)
    for start in expected:
        assert [line for line in mistakes if line.startswith(start)], start
    assert any("'http'" in line and "environment STREAMPCA_METRICS_PORT" in line for line in mistakes)


def test_read_raises_one_line_with_all_mistakes() -> None:
    text = refusal(SettingsError, lambda: WorkerSettings.read(dimensions=0))
    for needle in ("topic is required: set STREAMPCA_TOPIC or pass --topic", "components is required", "dimensions: "):
        assert needle in text


def test_secrets_are_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "c.toml"
    file.write_text('ssl_password = 271828182\nsasl_password = "hush-hush"\n')
    rows, mistakes = WorkerSettings.explain(file, **REQUIRED)
    shown = " ".join(row.value for row in rows) + " ".join(mistakes)
    assert "hush-hush" not in shown
    assert "271828182" not in shown
    assert any(line.startswith("ssl_password: ") and MASK in line for line in mistakes)
    file.write_text('sasl_password = "hush-hush"\n')
    assert explain(WorkerSettings, file, **REQUIRED)["sasl_password"][0] == MASK
    settings = WorkerSettings.read(file, **REQUIRED)
    assert settings.sasl_password.get_secret_value() == "hush-hush"
    assert "hush-hush" not in repr(settings)
    for url in ("http://me:secret@registry:8081", "http://me:secret@one,http://you:other/secret@two"):
        rows, mistakes = WorkerSettings.explain(topic="t", schema_registry_url=url)
        assert "secret" not in f"{rows}{mistakes}"
        assert any(row.value.endswith(url[-4:]) for row in rows)


def test_a_file_may_hold_settings_of_all_commands_but_no_unknown_names(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('topic = "t"\ndimensions = 3\ncomponents = 1\nport = 8001\n')
    assert WorkerSettings.read(file).dimensions == 3
    assert ServeSettings.read(file).port == 8001
    file.write_text('topic = "t"\nprot = 8001\nmax_body_byte = 7\n')
    assert find_mistakes(ServeSettings, file) == [
        f"{file}: prot is not a setting",
        f"{file}: max_body_byte is not a setting: did you mean max_body_bytes?",
    ]


SERVICE_VARIABLES = {  # Kubernetes sets them for the Services streampca and streampca-sidecar
    "STREAMPCA_SERVICE_HOST": "10.0.0.1",
    "STREAMPCA_SERVICE_PORT": "80",
    "STREAMPCA_SERVICE_PORT_HTTP": "80",
    "STREAMPCA_PORT_80_TCP": "tcp://10.0.0.1:80",
    "STREAMPCA_PORT_80_TCP_PROTO": "tcp",
    "STREAMPCA_PORT_80_TCP_PORT": "80",
    "STREAMPCA_PORT_80_TCP_ADDR": "10.0.0.1",
    "STREAMPCA_METRIC_PORT": "tcp://10.0.0.1:80",  # though it resembles a setting's name
    "STREAMPCA_SIDECAR_SERVICE_HOST": "10.0.0.2",
    "STREAMPCA_SIDECAR_SERVICE_PORT_HTTP": "8000",
    "STREAMPCA_SIDECAR_PORT_53_UDP_PORT": "53",
}


def test_variables_that_are_no_settings_are_known_except_those_of_kubernetes_and_of_streampca(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known_names = collect_fields(Settings)
    for name in known_names:
        monkeypatch.setenv(f"STREAMPCA_{name.upper()}", "1")
    for variable, value in SERVICE_VARIABLES.items():
        monkeypatch.setenv(variable, value)
    for variable in ("STREAMPCA_CONFIG", "STREAMPCA_TOKEN", "STREAMPCAS", "OTHER"):
        monkeypatch.setenv(variable, "x")
    assert find_unknown_variables(known_names) == {}
    unknown = {
        "STREAMPCA_CLIENT_RACK": None, "STREAMPCA_": None, "STREAMPCA_SERVICE": None, "STREAMPCA_DTYP": "dtype",
        "STREAMPCA_store": "store", "streampca_topic": "topic",
    }  # fmt: skip
    for variable in unknown:
        monkeypatch.setenv(variable, "")
    assert find_unknown_variables(known_names) == unknown


def test_a_start_ignores_unknown_variables_that_resemble_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMPCA_CLIENT_RACK", "a")
    assert WorkerSettings.read(**REQUIRED).rack is None
    monkeypatch.setenv("STREAMPCA_RACKS", "a")
    assert "STREAMPCA_RACKS is not a setting: did you mean STREAMPCA_RACK?" in refusal(
        SettingsError, lambda: WorkerSettings.read(**REQUIRED)
    )


def test_a_start_refuses_the_variable_of_a_setting_that_is_not_in_capitals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMPCA_half_life_messages", "100")  # is not read
    message = refusal(SettingsError, lambda: WorkerSettings.read(**REQUIRED))
    expected = "STREAMPCA_half_life_messages is not a setting: did you mean STREAMPCA_HALF_LIFE_MESSAGES?"
    assert expected in message


def test_variables_of_a_service_are_ignored_unless_they_are_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in SERVICE_VARIABLES.items():
        monkeypatch.setenv(variable, value)
    assert find_mistakes(**REQUIRED) == []
    monkeypatch.setenv("STREAMPCA_METRICS_PORT", "tcp://10.0.0.1:80")
    (mistake,) = find_mistakes(**REQUIRED)
    assert "set by Kubernetes for a Service of this name: set enableServiceLinks: false" in mistake


def test_an_unusable_file_is_one_mistake(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    assert find_mistakes(config=file, **REQUIRED) == [
        f"the configuration file {file} cannot be read: No such file or directory"
    ]
    for text in ("topic = ", "\x00"):
        file.write_text(text)
        assert [line for line in find_mistakes(config=file, **REQUIRED) if str(file) in line and "not TOML" in line]


@pytest.mark.parametrize(
    ("options", "needle"),
    [
        ({"topic": ".."}, "topic: "),
        ({"topic": "a" * 250}, "topic: "),
        ({"bootstrap_servers": "kafka"}, "'kafka' is not host:port"),
        ({"bootstrap_servers": "kafka:9092,"}, "'' is not host:port"),
        ({"bootstrap_servers": "kafka:99999"}, "is not host:port"),
        ({"bootstrap_servers": "kafka:9092,http://kafka:9092"}, "'http://kafka:9092' is not host:port"),
        ({"host": "http://0.0.0.0"}, "not the name or address of a host"),
        ({"security_protocol": "SASL_SSL"}, "needs sasl_mechanism"),
        ({"ssl_cafile": __file__}, "ssl_cafile, ssl_certfile and ssl_keyfile need security_protocol SSL or SASL_SSL"),
        ({"ssl_cafile": "/none.pem"}, "ssl_cafile: path does not point to a file, got '/none.pem'"),
        ({"sasl_token_url": "http://login.example/token"}, "string should match pattern"),
        ({"sasl_token_url": "https://ann:secret@login.example/token"}, "string should match pattern"),
        ({"sasl_token_url": "login.example"}, "string should match pattern"),
        (TOKENS | {"sasl_token_url": None}, "OAUTHBEARER needs sasl_token_url"),
        (TOKENS | {"sasl_password": None}, "sasl_mechanism OAUTHBEARER needs sasl_username and sasl_password"),
        (
            {"security_protocol": "SASL_SSL", "sasl_mechanism": "AWS_MSK_IAM"},
            "needs the environment variable AWS_REGION",
        ),
        ({"half_life_messages": 5, "half_life_seconds": 5}, "exclude each other"),
        ({"half_life_messages": float("inf")}, "half_life_messages: "),
        ({"standardize": True, "center": False}, "standardize divides by standard deviations about the mean"),
        ({"dead_letter_topic": "readings"}, "must not be the topic itself"),
        ({"keep_models": 0}, "keep_models: "),
        ({"start": "yesterday"}, "start: 'yesterday' is not a time such as"),
        ({"start": "2026-01-31"}, "start: the time '2026-01-31' has no zone: write 2026-01-31T00:00:00Z"),
        ({"format": "avro"}, "format avro needs schema_registry_url"),
        ({"format": "protobuf", "field": "v"}, "format protobuf needs schema_registry_url"),
        ({"format": "protobuf", "schema_registry_url": "http://r:8081"}, "format protobuf needs field"),
        ({"format": "float32", "field": "v"}, "format float32 has no fields"),
        ({"format": ">i4", "field": "v"}, "format >i4 has no fields"),
        ({"schema_registry_login": "secret"}, "not user:password, got ********"),
        ({"schema_registry_login": ":secret"}, "not user:password, got ********"),
        ({"schema_registry_url": "registry:8081"}, "not http://host:port"),
        ({"schema_registry_url": "http://"}, "not http://host:port"),
        ({"schema_registry_url": "http://a:1,ftp://b:2"}, "not http://host:port"),
        ({"schema_registry_url": "https://ann:secret@r"}, "as schema_registry_login"),
    ],
)
def test_invalid_settings_are_refused(options: dict[str, object], needle: str) -> None:
    [mistake] = find_mistakes(**{**REQUIRED, **options})
    assert needle in mistake
    assert "secret" not in mistake


SECONDS_OF_A_ZONE = st.integers(-23 * 3600, 23 * 3600)


@given(st.datetimes(), SECONDS_OF_A_ZONE)
def test_a_time_needs_a_zone_and_the_hint_reads_it_in_utc(time: datetime, offset_s: int) -> None:
    """The same text must not mean another moment on a machine in another zone."""
    sentence = refusal(ValueError, parse_iso_time_ms, time.isoformat())
    hint = re.search(r"write (\S+) if", sentence)
    assert hint is not None
    in_utc = parse_iso_time_ms(hint[1])
    whole_ms = time.replace(microsecond=time.microsecond // 1000 * 1000, tzinfo=UTC)
    assert datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=in_utc) == whole_ms
    elsewhere = time.replace(tzinfo=timezone(timedelta(seconds=offset_s))).isoformat()
    assert parse_iso_time_ms(elsewhere) == in_utc - 1000 * offset_s


@given(st.datetimes(), SECONDS_OF_A_ZONE, st.integers(1, 999_999), st.sampled_from(".,"))
def test_a_zone_has_no_fraction_of_a_second(time: datetime, offset_s: int, fraction_us: int, point: str) -> None:
    """`datetime.fromisoformat` reads such a zone as UTC if it has less than a second."""
    offset = timedelta(seconds=offset_s, microseconds=fraction_us)
    date, _, rest = time.replace(tzinfo=timezone(offset)).isoformat().partition("T")
    sentence = refusal(ValueError, parse_iso_time_ms, f"{date}T{rest.replace('.', point)}")
    assert "has a fraction of a second: write hours and minutes, such as +02:00" in sentence


@pytest.mark.parametrize(
    ("options", "needle"),
    [
        ({"output_topic": "readings"}, "output_topic must be neither the topic itself nor the dead-letter topic"),
        ({"dead_letter_topic": "projected"}, "output_topic must be neither"),
        ({"emit": "coordinates,loss"}, "not a comma-separated choice of coordinates, residual"),
        ({"emit": "p,p"}, "not a comma-separated choice"),
        ({"emit": ""}, "not a comma-separated choice"),
        ({"output_format": "npy", "emit": "record"}, "output_format npy holds only numbers, without names"),
        ({"output_format": "float32", "emit": "p,contributions:2"}, "output_format float32 holds only numbers"),
        ({"output_format": "avro"}, "output_format avro needs schema_registry_url"),
        (
            {"output_format": "int8"},
            "protobuf, arrow nor offered by an installed package",
        ),
        ({"output_format": "avro", "format": "arrow", "schema_registry_url": "http://r:1"}, "holds one vector"),
    ],
)
def test_invalid_settings_of_transform_are_refused(options: dict[str, object], needle: str) -> None:
    [mistake] = find_mistakes(TransformSettings, **{"topic": "readings", "output_topic": "projected", **options})
    assert needle in mistake


@pytest.mark.parametrize(
    ("kind", "module", "options", "remedy"),
    [
        (WorkerSettings, "kafka", {"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"}, "gssapi"),
        (WorkerSettings, "kafka", TOKENS, "'.[oauth]'"),
        (WorkerSettings, "kafka", MSK, "'.[msk]'"),
        (WorkerSettings, "kafka", {"kafka_client": "confluent"}, "'.[worker]'"),
        (TransformSettings, "commands", {"output_format": "arrow", "output_topic": "o"}, "'.[arrow]'"),
        (WorkerSettings, "process", {"store": "s3://bucket/a"}, "'.[object-store]'"),
    ],
)
def test_a_missing_package_is_a_mistake(
    monkeypatch: pytest.MonkeyPatch, kind: type[Settings], module: str, options: dict[str, str], remedy: str
) -> None:
    values = {name: value for name, value in (REQUIRED | options).items() if name in kind.model_fields}
    monkeypatch.setattr(getattr(settings, module), "find_spec", lambda name: None)
    [mistake] = find_mistakes(kind, **values)
    assert mistake.endswith(f"pip install {remedy}")
    monkeypatch.setattr(getattr(settings, module), "find_spec", lambda name: name)
    assert find_mistakes(kind, **values) == []


@pytest.mark.parametrize(
    ("installed", "options", "client"),
    [
        (True, {}, "confluent"),
        (False, {}, "kafka-python"),
        (True, {"kafka_client": "kafka-python"}, "kafka-python"),
        (True, {"security_protocol": "SASL_SSL", "sasl_mechanism": "GSSAPI"}, "kafka-python"),
    ],
)
def test_the_faster_client_is_the_default_where_it_can_be_used(
    monkeypatch: pytest.MonkeyPatch, installed: bool, options: dict[str, str], client: str
) -> None:
    monkeypatch.setattr(settings.kafka, "find_spec", lambda name: name if installed else None)
    assert WorkerSettings(**REQUIRED, **options).client == client


def test_required_settings_come_first_and_then_common_ones() -> None:
    names = list(explain(WorkerSettings))
    assert names[:5] == ["topic", "dimensions", "components", "bootstrap_servers", "store"]
    assert names.index("group_id") < names.index("center") < names.index("dtype") < names.index("sasl_password")


@pytest.mark.parametrize(
    "options",
    [
        {"format": "avro", "schema_registry_url": "http://a:8081, https://b"},
        {"format": "protobuf", "field": "a.b", "schema_registry_url": "https://r/apis/ccompat/v7"},
        {"format": "arrow", "field": "v"},
        {"schema_registry_url": "http://r:1", "schema_registry_login": "ann:secret"},
        {"ssl_cafile": __file__, "security_protocol": "SSL"},
    ],
)
def test_settings_are_accepted_with_the_settings_that_they_need(options: dict[str, str]) -> None:
    assert "secret" not in repr(WorkerSettings(**REQUIRED, **options))


@pytest.mark.parametrize("given", ["-200, 9.96921e36", "9.96921e36,-2e2,nan", [9.96921e36, -200]])
def test_missing_values_are_given_as_a_text_or_as_numbers(given: object) -> None:
    assert WorkerSettings(**REQUIRED, missing_values=given).missing_values == "-200, 9.96921e+36"


def test_missing_values_are_numbers() -> None:
    (mistake,) = find_mistakes(**REQUIRED, missing_values="-9999, x")
    assert mistake.startswith("missing_values: 'x' is not a number: write numbers with commas between")


def test_there_are_few_settings() -> None:
    """A setting that nobody sets is a constant."""
    assert len(collect_fields(Settings)) <= 56


@pytest.mark.parametrize("name", [
    "text", "", "bool", "complex64", "object", "U4", "S8", "a4", "V8", "longdouble", "f16", "M8[s]", "2f8", "f8,f8",
    "i3", ">", " f8", "x" * 5000,
])  # fmt: skip
def test_a_format_that_is_not_a_type_of_numbers_of_1_to_8_bytes_is_refused(name: str) -> None:
    [mistake] = find_mistakes(**REQUIRED, format=name)
    assert "neither json, csv, npy, arrow, avro, protobuf nor a NumPy type of numbers of 1 to 8 bytes" in mistake


FLOAT32_HOLDS = ["float16", "float32", ">f4", "int8", "uint8", "int16", ">u2"]
NEED_FLOAT64 = ["float64", "<f8", "int32", ">u4", "int64"]


@pytest.mark.parametrize("asked", [{}, {"dtype": "float32"}, {"dtype": "float64"}])
@pytest.mark.parametrize("name", [*FLOAT32_HOLDS, *NEED_FLOAT64, "json", "npy"])
def test_formats_that_float32_holds_exactly_are_learned_in_float32(name: str, asked: dict[str, str]) -> None:
    """Unless `dtype` is set. Formats that name the type in each record are learned in float64."""
    default = "float32" if name in FLOAT32_HOLDS else "float64"
    assert WorkerSettings(**REQUIRED, format=name, **asked).model_dtype == asked.get("dtype", default)


@pytest.mark.parametrize(("name", "meant"), [
    ("f8", "float64"), ("<f8", "float64"), ("double", "float64"), ("float64", "float64"), (">f8", ">f8"),
    (">u1", "uint8"), ("float32", "float32"), ("<i2", "int16"), ("json", "json"), ("npy", "npy"),
])  # fmt: skip
def test_all_spellings_of_a_type_have_one_name_in_checkpoints(name: str, meant: str) -> None:
    settings = WorkerSettings(**REQUIRED, format=name)
    assert settings.format_name == create_worker_config(settings).fold.format == meant


@pytest.mark.parametrize(("location", "meant"), VALID_STORES.items())
def test_stores_may_be_folders_and_urls(location: str, meant: str) -> None:
    assert ServeSettings(topic="t", store=location).store == meant


@pytest.mark.parametrize(("location", "sentence"), INVALID_STORES.items())
def test_an_invalid_store_is_explained_without_secrets(location: str, sentence: str) -> None:
    for attempt in (
        lambda: open_store(location),
        lambda: open_parent_store(f"{location}/model.npz"),
        lambda: ServeSettings.read(topic="t", store=location),
    ):
        text = refusal(SettingsError, attempt)
        assert "hush-hush" not in text
    assert sentence in text
    rows, mistakes = ServeSettings.explain(topic="t", store=location)
    assert "hush-hush" not in f"{rows}{mistakes}"


def test_a_path_object_names_a_folder(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    assert (type(store), store.root) == (DirectoryStore, tmp_path)
    assert ServeSettings(topic="t", store=tmp_path).store == str(tmp_path)


def test_a_missing_package_for_buckets_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "streampca.stores.object_store", None)
    assert "pip install '.[object-store]'" in refusal(SettingsError, open_store, "s3://bucket/a")
