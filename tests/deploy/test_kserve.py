"""The example for KServe is valid for its schemas, and names what the sidecar knows."""

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from streampca.settings.commands import ServeSettings
from tests.deploy.files import ROOT

SCHEMAS = json.loads(Path(__file__).with_name("kserve.json").read_text())
RUNTIME, SERVICE = yaml.safe_load_all((ROOT / "docs" / "examples" / "kserve.yaml").read_text())


def errors(example: Any) -> list[str]:
    validator = jsonschema.Draft202012Validator(SCHEMAS[example["kind"]])
    return [error.message for error in validator.iter_errors(example)]


@pytest.mark.parametrize("example", [RUNTIME, SERVICE], ids=lambda example: example["kind"])
def test_an_example_is_valid_and_a_typo_is_not(example: Any) -> None:
    assert errors(example) == []
    mistaken = copy.deepcopy(example)
    mistaken["spec"]["modelFormat"] = {}
    assert errors(mistaken) == ["Additional properties are not allowed ('modelFormat' was unexpected)"]


def test_both_examples_and_the_sidecar_fit_together() -> None:
    model, (container,) = SERVICE["spec"]["predictor"]["model"], RUNTIME["spec"]["containers"]
    assert model["runtime"] == RUNTIME["metadata"]["name"]
    assert model["modelFormat"]["name"] in [known["name"] for known in RUNTIME["spec"]["supportedModelFormats"]]
    variables = {entry["name"]: entry["value"] for entry in container["env"] + model["env"]}
    values = {
        name.removeprefix("STREAMPCA_").lower(): value.replace("{{.Name}}", SERVICE["metadata"]["name"])
        for name, value in variables.items()
        if name.startswith("STREAMPCA_")
    }
    settings = ServeSettings(**values)
    assert (settings.topic, settings.port) == ("readings", container["ports"][0]["containerPort"])
