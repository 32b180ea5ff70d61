"""The dashboard as Grafana's own SDK reads it: every field is one that it knows, of the right kind.

The SDK is generated from the schemas of Grafana and of its panels and data sources; what it does not know it drops, so
a dashboard that comes out of it as it went in holds no misspelt field. Grafana itself does not run here.
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

# Of annotations that a Prometheus answers; the SDK knows only what those of all data sources have.
OF_ANNOTATIONS = {"$.annotations.list[0].titleFormat", "$.annotations.list[0].step"}


def read(board: dict[str, Any]) -> Dashboard:
    register_default_plugins()
    return Dashboard.from_json(board)


def lost(before: Any, after: Any, place: str = "$") -> Iterator[str]:
    """Places at which something is missing or another after the SDK has read and written it."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in before.items():
            yield from lost(value, after[name], f"{place}.{name}") if name in after else [f"{place}.{name}"]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from lost(one, other, f"{place}[{i}]")
    elif before != after:
        yield place


def of_wrong_kind(found: Any, place: str = "$") -> Iterator[str]:
    """Fields whose value is not what the SDK declares; reading alone does not look."""
    if isinstance(found, list | dict):
        for name, value in found.items() if isinstance(found, dict) else enumerate(found):
            yield from of_wrong_kind(value, f"{place}[{name}]")
    elif hasattr(type(found), "__annotations__") and not isinstance(found, enum.Enum):
        for name, hint in typing.get_type_hints(type(found)).items():
            try:
                TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True)).validate_python(getattr(found, name))
            except ValidationError:
                yield f"{place}.{name}"
            yield from of_wrong_kind(getattr(found, name), f"{place}.{name}")


def faults(board: dict[str, Any]) -> set[str]:
    found = read(board)
    return {*lost(board, json.loads(JSONEncoder().encode(found))), *of_wrong_kind(found)} - OF_ANNOTATIONS


def test_grafanas_own_types_know_every_field() -> None:
    assert faults(BOARD) == set()


def first(board: dict[str, Any], kind: str) -> dict[str, Any]:
    panel: dict[str, Any] = next(panel for panel in board["panels"] if panel["type"] == kind)
    return panel


SLIPS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a field of the dashboard": lambda board: board.update(timezon="browser"),
    "a field of a panel": lambda board: first(board, "stat").update(desription="?"),
    "an option of a panel": lambda board: first(board, "heatmap")["options"].update(celGap=1),
    "a word of no list": lambda board: first(board, "timeseries")["options"]["tooltip"].update(mode="many"),
    "a drawing option": lambda board: first(board, "timeseries")["fieldConfig"]["defaults"]["custom"].update(width=1),
    "a field of a query": lambda board: first(board, "bargauge")["targets"][0].update(legend="?"),
    "a text for a number": lambda board: board["panels"][0]["gridPos"].update(h="tall"),
}


@pytest.mark.parametrize("slip", SLIPS)
def test_slips_are_found(slip: str) -> None:
    board = copy.deepcopy(BOARD)
    SLIPS[slip](board)
    assert len(faults(board)) == 1
