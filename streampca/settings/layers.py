"""Collects raw settings from options, the environment and a TOML file, in this order of precedence.

Only names are validated here: a misspelt `dead_letter_topic` would otherwise go unnoticed until it is needed.
"""

import difflib
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

PREFIX = "STREAMPCA_"
CONFIG = "STREAMPCA_CONFIG"


class Gathered(NamedTuple):
    """Raw values by name, their origins, and mistakes in the sources themselves."""

    values: dict[str, Any]
    origins: dict[str, str]
    mistakes: list[str]


def gather(
    names: Collection[str],
    all_names: Collection[str],
    options: Mapping[str, Any],
    config: Path | None,
    environment: Mapping[str, str],
) -> Gathered:
    """Values of `names`; `all_names` are the settings of all commands, which share the environment and the file.

    `options` that are None and empty environment variables count as unset.
    """
    mistakes = _misspelt_variables(environment, all_names)
    path = config or environment.get(CONFIG)
    table = _table_of(Path(path), all_names, mistakes) if path else {}
    variables = {name: PREFIX + name.upper() for name in names}
    entries = {name: (value, f"file {path}") for name, value in table.items()}
    entries |= {name: (environment[v], f"environment {v}") for name, v in variables.items() if environment.get(v)}
    entries |= {name: (v, f"option --{name.replace('_', '-')}") for name, v in options.items() if v is not None}
    own = {name: entry for name, entry in entries.items() if name in names}
    return Gathered({name: value for name, (value, _) in own.items()}, {n: o for n, (_, o) in own.items()}, mistakes)


def _misspelt_variables(environment: Iterable[str], all_names: Collection[str]) -> list[str]:
    """Variables whose names resemble a setting's. Others are ignored: they may belong to another program."""
    strays = sorted(v for v in environment if v.startswith(PREFIX) and v != CONFIG)
    names = {stray: stray.removeprefix(PREFIX).lower() for stray in strays}
    return [
        f"{stray} is not a setting: did you mean {PREFIX}{near.upper()}?"
        for stray, name in names.items()
        if name not in all_names and (near := _nearest(name, all_names))
    ]


def _table_of(path: Path, all_names: Collection[str], mistakes: list[str]) -> dict[str, Any]:
    """The values of a TOML file; adds what is wrong with it to the mistakes."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        mistakes.append(f"the configuration file {path} cannot be read: {error.strerror}")
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        mistakes.append(f"the configuration file {path} is not TOML: {error}")
        return {}
    for name in [name for name in table if name not in all_names]:
        near = _nearest(name, all_names)
        mistakes.append(f"{path}: {name} is not a setting" + (f": did you mean {near}?" if near else ""))
    return table


def _nearest(name: str, all_names: Collection[str]) -> str | None:
    """The setting that `name` probably misspells."""
    return next(iter(difflib.get_close_matches(name, all_names, n=1, cutoff=0.85)), None)
