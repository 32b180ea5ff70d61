"""The Helm chart's metadata, values and schema; `make helm-test` renders it."""

import json
import runpy
from typing import Any

import jsonschema
import pytest
import yaml

from streampca.settings.commands import WorkerSettings
from streampca.settings.store_url import CREDENTIALS
from streampca.version import __version__
from tests.command_line import variables
from tests.deploy import files
from tests.deploy.commands import KINDS, effective_settings

CHART = files.ROOT / "helm" / "streampca"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())


def accepts(**changed: Any) -> bool:
    """Whether the schema accepts the values with some of them changed: `store__url` is `url` in `store`."""
    values = json.loads(json.dumps(VALUES))
    for path, value in changed.items():
        *parents, name = path.split("__")
        place = values
        for parent in parents:
            place = place[parent]
        place[name] = value
    return bool(jsonschema.Draft7Validator(SCHEMA).is_valid(values))


def test_the_chart_has_the_version_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)
    assert chart["name"] == CHART.name


def test_the_schema_accepts_the_default_values() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    assert accepts()
    assert accepts(store__url="", store__disk={"size": "1Ti", "existingClaim": "mine"})
    assert accepts(settings__half_life_messages=1e6, settings__group_id="mine", settings__dead_letter_topic="")


@pytest.mark.parametrize("mistake", [
    {"replicas": 3},
    {"worker__replicas": "3"},
    {"store__url": "bucket/prefix"},
    {"store__environment": {"AWS_SECRET_ACCESS_KEY": "x"}},
    {"store__environment": {"REGION": "x"}},
    {"image__pullPolicy": "always"},
    {"networkPolicy__clientCidrs": ["10.0.0.1"]},
    {"monitoring__interval": "30"},
    {"networkPolicy__brokerPorts": [0]},
    {"autoscaling__maxReplicas": 0},
    {"transform__autoscaling__maxReplicas": 0},
    {"transform__autoscaling__metadata": {}},
    {"transform__enabled": "yes"},
    {"worker__autoscaling": {"enabled": True, "minReplicas": 1, "maxReplicas": 2, "targetCpuPercent": 70}},
    {"worker__enabled": True},
    {"settings__sasl_password": "x"},
    {"settings__dimension": 784},
    {"settings__dimensions": "abc"},
    {"settings__dimensions": 0},
    {"settings__only_p_below": 1.5},
    {"settings__sasl_mechanism": "KERBEROS"},
    {"settings__standardize": "yes"},
    {"settings__tls_folder": "/tls"},
    {"sidecar__enabled": True},
    {"worker__image": {"repository": "", "tag": "", "digest": ""}},
    {"image__repository": ""},
    {"tls__secret": "My Secret"},
    {"backfill__enabled": True},
    {"ingress__enabled": True},
    {"httpRoute__enabled": True},
], ids=str)  # fmt: skip
def test_the_schema_refuses_mistakes(mistake: dict[str, Any]) -> None:
    assert not accepts(**mistake)


def test_the_settings_of_the_schema_are_those_of_the_code() -> None:
    generator = runpy.run_path(str(CHART.parent / "schema.py"))
    assert (CHART / "values.schema.json").read_text() == generator["text"](), "run: make schema"
    fields = {name for kind in KINDS.values() for name in kind.model_fields}
    settings = SCHEMA["properties"]["settings"]
    assert fields - generator["MADE_BY_THE_CHART"] - settings["properties"].keys() == {
        "sasl_password", "schema_registry_login", "ssl_password",
    }  # fmt: skip
    assert {n for n, field in WorkerSettings.model_fields.items() if field.is_required()} <= set(settings["required"])


def test_credentials_belong_in_the_secret() -> None:
    names = {name for text in CREDENTIALS.values() for name in text.split(" and ")}
    assert {n for n in names if not accepts(store__environment={n: "x"})} == {
        "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_ACCOUNT_KEY",
    }  # fmt: skip


@pytest.mark.parametrize("command", ["worker", "serve"])
def test_the_default_settings_are_valid(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    environment = variables({**VALUES["settings"], "store": VALUES["store"]["url"]})
    assert effective_settings([command], environment, monkeypatch)["topic"] == "readings"
