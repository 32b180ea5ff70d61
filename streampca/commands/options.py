"""Command-line options that are settings: declared once, given to commands by name, None when not given."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from streampca import help_texts

_TYPES: dict[str, type] = {
    "topic": str,
    "dimensions": int,
    "components": int,
    "bootstrap_servers": str,
    "group_id": str,
    "store": str,
    "format": str,
    "field": str,
    "dead_letter_topic": str,
    "oversampling": int,
    "half_life_seconds": float,
    "worker_port": int,
    "host": str,
    "port": int,
    "output_topic": str,
    "emit": str,
    "output_format": str,
    "basis": str,
    "only_p_below": float,
    "model_version": int,
    "transform_group_id": str,
    "transform_port": int,
    "log_level": str,
    "log_format": str,
    "config": Path,
}

LOG = ("log_level", "log_format", "config")
WORKER = (
    *("topic", "dimensions", "components", "bootstrap_servers", "group_id", "store", "format", "field"),
    *("dead_letter_topic", "oversampling", "half_life_seconds", "worker_port", *LOG),
)
TRANSFORM = (
    *("topic", "output_topic", "emit", "output_format", "basis", "only_p_below", "model_version"),
    *(
        "bootstrap_servers",
        "transform_group_id",
        "store",
        "format",
        "field",
        "dead_letter_topic",
        "transform_port",
        *LOG,
    ),
)

Given = dict[str, Any]
"""The values of these options by name."""


def taken(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add these options to a command, which receives their values as its first argument, a `Given`."""
    options = [_parameter(name) for name in names]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**arguments: Any) -> None:
            command({name: arguments.pop(name) for name in names}, **arguments)

        _, *own = inspect.signature(command).parameters.values()
        by_keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        run.__signature__ = inspect.Signature([*options, *by_keyword])  # type: ignore[attr-defined]  # typer reads it
        return run

    return decorate


def _parameter(name: str) -> inspect.Parameter:
    option: Any = Annotated[_TYPES[name] | None, typer.Option(help=getattr(help_texts, name.upper()))]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
