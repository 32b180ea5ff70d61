"""Writes the settings into the chart's values.schema.json, with their types and bounds: `make schema`."""

import json
import re
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import SecretStr, TypeAdapter
from pydantic.fields import FieldInfo

from streampca.settings.commands import CreateTopicsSettings, ServeSettings, TransformSettings, WorkerSettings

OUTPUT = Path(__file__).parent / "streampca" / "values.schema.json"
MADE_BY_THE_CHART = {"group_instance_id", "store", "port", "metrics_port", "tls_folder", "tokens_file"}
REQUIRED = ["bootstrap_servers", "topic", "dimensions", "components"]
ANNOTATIONS = {"title", "description", "default", "format"}


def settings() -> dict[str, FieldInfo]:
    """The settings that users of the chart may set, by name."""
    kinds = (ServeSettings, TransformSettings, WorkerSettings, CreateTopicsSettings)  # the last says what is optional
    fields = {name: field for kind in kinds for name, field in kind.model_fields.items()}
    return {
        name: field
        for name, field in sorted(fields.items())
        if name not in MADE_BY_THE_CHART and SecretStr not in (field.annotation, *get_args(field.annotation))
    }


def schema_of(field: FieldInfo) -> dict[str, Any]:
    """The type and the bounds of a setting. An empty variable counts as unset, so an optional setting may be empty."""
    annotated: Any = Annotated[field.annotation, field]
    schema = TypeAdapter(annotated).json_schema()
    choices = [choice for choice in schema.pop("anyOf", [schema]) if choice != {"type": "null"}]
    if field.default is None:
        choices.append({"const": ""})
    bare = [{name: value for name, value in choice.items() if name not in ANNOTATIONS} for choice in choices]
    return {"anyOf": bare} if len(bare) > 1 else bare[0]


def text() -> str:
    """The file's content: one line for each setting."""
    lines = ",\n".join(f"        {json.dumps(name)}: {json.dumps(schema_of(f))}" for name, f in settings().items())
    block = f"""    "settings": {{
      "description": "All but secrets, and those that the chart makes itself.",
      "type": "object",
      "additionalProperties": false,
      "required": {json.dumps(REQUIRED)},
      "properties": {{
{lines}
      }}
    }}"""
    return re.sub(r'^    "settings": \{$.*?^    \}', lambda _: block, OUTPUT.read_text(), count=1, flags=re.M | re.S)


if __name__ == "__main__":
    OUTPUT.write_text(text())
