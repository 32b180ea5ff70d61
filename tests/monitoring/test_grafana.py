"""Grafana's own SDK accepts the dashboard: it knows every field, and every value has the right type.

The SDK is generated from the schemas of Grafana, its panels and its data sources, and drops unknown fields: if a round
trip through it changes nothing, no field is misspelt. Grafana itself does not run here.
"""

import copy
import enum
import json
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from pydantic import ConfigDict, TypeAdapter, ValidationError

from tests.monitoring.test_dashboard import BOARD

# Fields of Prometheus' annotations; the SDK knows only those that all data sources have in common.
ANNOTATION_FIELDS = {"$.annotations.list[0].titleFormat", "$.annotations.list[0].step"}


def read(board: dict[str, Any]) -> Dashboard:
    register_default_plugins()
    return Dashboard.from_json(board)


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


def mistyped(found: Any, place: str = "$") -> Iterator[str]:
    """Paths of values whose type is not the one that the SDK declares; from_json does not check it."""
    if isinstance(found, list | dict):
        for name, value in found.items() if isinstance(found, dict) else enumerate(found):
            yield from mistyped(value, f"{place}[{name}]")
    elif hasattr(type(found), "__annotations__") and not isinstance(found, enum.Enum):
        for name, hint in typing.get_type_hints(type(found)).items():
            try:
                TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(getattr(found, name))
            except ValidationError:
                yield f"{place}.{name}"
            yield from mistyped(getattr(found, name), f"{place}.{name}")


def faults(board: dict[str, Any]) -> set[str]:
    found = read(board)
    return {*changed(board, json.loads(JSONEncoder().encode(found))), *mistyped(found)} - ANNOTATION_FIELDS


def test_the_sdk_accepts_the_dashboard() -> None:
    assert faults(BOARD) == set()


def first(board: dict[str, Any], kind: str) -> dict[str, Any]:
    panel: dict[str, Any] = next(panel for panel in board["panels"] if panel["type"] == kind)
    return panel


MISTAKES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a field of the dashboard": lambda board: board.update(timezon="browser"),
    "a field of a panel": lambda board: first(board, "stat").update(desription="?"),
    "an option of a panel": lambda board: first(board, "heatmap")["options"].update(celGap=1),
    "an unknown mode": lambda board: first(board, "timeseries")["options"]["tooltip"].update(mode="many"),
    "a drawing option": lambda board: first(board, "timeseries")["fieldConfig"]["defaults"]["custom"].update(width=1),
    "a field of a query": lambda board: first(board, "bargauge")["targets"][0].update(legend="?"),
    "a string instead of a number": lambda board: board["panels"][0]["gridPos"].update(h="tall"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_detected(mistake: str) -> None:
    board = copy.deepcopy(BOARD)
    MISTAKES[mistake](board)
    assert len(faults(board)) == 1
