"""Grafana's own SDK accepts the dashboard: it knows every field.

The SDK is generated from the schemas of Grafana, its panels and its data sources, and drops unknown fields: if a round
trip through it changes nothing, no field is misspelt. Grafana itself does not run here.
"""

import json
from collections.abc import Iterator
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.monitoring.test_dashboard import BOARD

# Fields of Prometheus' annotations; the SDK knows only those that all data sources have in common.
ANNOTATION_FIELDS = {"$.annotations.list[0].titleFormat", "$.annotations.list[0].step"}


def changed(before: Any, after: Any, place: str = "$") -> Iterator[str]:
    """Paths of values that a round trip through the SDK drops or changes."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in before.items():
            yield from changed(value, after[name], f"{place}.{name}") if name in after else [f"{place}.{name}"]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from changed(one, other, f"{place}[{i}]")
    elif before != after:
        yield place


def faults(board: dict[str, Any]) -> set[str]:
    register_default_plugins()
    found = Dashboard.from_json(board)
    return set(changed(board, json.loads(JSONEncoder().encode(found)))) - ANNOTATION_FIELDS


def test_the_sdk_accepts_the_dashboard() -> None:
    assert faults(BOARD) == set()
