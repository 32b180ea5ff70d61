"""streampca's commands as containers start them: their settings, ports and paths."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from typer.main import get_command

from streampca.cli.app import app as command_line
from streampca.consumer_group import port
from streampca.settings.base import Settings
from streampca.settings.commands import (
    CreateTopicsSettings,
    ProduceSettings,
    ServeSettings,
    TransformSettings,
    WorkerSettings,
)
from streampca.sidecar.app import create_app
from streampca.stores.memory import MemoryStore
from tests.deploy import files

KINDS: dict[str, type[Settings]] = {
    "worker": WorkerSettings, "serve": ServeSettings, "produce": ProduceSettings, "create-topics": CreateTopicsSettings,
    "transform": TransformSettings, "backfill": WorkerSettings,
}  # fmt: skip
PORTS = {
    "worker": WorkerSettings.model_fields["metrics_port"].default,
    "serve": ServeSettings.model_fields["port"].default,
    "transform": TransformSettings.model_fields["metrics_port"].default,
}
SETTINGS = {f"STREAMPCA_{name.upper()}" for kind in KINDS.values() for name in kind.model_fields}


def effective_settings(
    arguments: Sequence[str], environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """The settings of a command in a container; fails if an option, a variable or a value is not valid."""
    name, *options = arguments
    command = get_command(command_line).commands[name]  # type: ignore[attr-defined]
    command.make_context(name, list(options), resilient_parsing=False)  # raises if an option is unknown
    for variable, value in {**files.image_environment(), **environment}.items():
        if variable.startswith("STREAMPCA_"):
            assert variable in SETTINGS
            monkeypatch.setenv(variable, value)
    effective, mistakes = KINDS[name].explain()
    assert mistakes == []
    return {e.name: e.value for e in effective}


def paths_served() -> dict[str, set[str]]:
    """The paths that worker, transform and sidecar answer."""
    sidecar = create_app(MemoryStore(), ServeSettings(topic="t"))
    worker = {p for p in ("/metrics", "/healthz", "/readyz") if f'"{p}"' in Path(port.__file__).read_text()}
    return {"worker": worker, "transform": worker, "serve": set(sidecar.openapi()["paths"])}
