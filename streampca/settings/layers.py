"""Collects raw settings from options, the environment and a TOML file, in this order of precedence.

Only names are validated here: a misspelt `dead_letter_topic` would otherwise go unnoticed until it is needed.
"""

import difflib
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PREFIX = "STREAMPCA_"
CONFIG = "STREAMPCA_CONFIG"


@dataclass(slots=True)
class Gathered:
    """Raw values by name, their origins, and mistakes in the sources themselves."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)

    def add(self, name: str, value: Any, origin: str) -> None:
        """Add the value unless a source of higher precedence has set it."""
        if name not in self.values:
            self.values[name] = value
            self.origins[name] = origin


def gather(
    names: Collection[str],
    known: Collection[str],
    options: Mapping[str, Any],
    config: Path | None,
    environment: Mapping[str, str],
) -> Gathered:
    """Values of `names`; `known` are the settings of all commands, which share the environment and the file.

    `options` that are None and empty environment variables count as unset.
    """
    gathered = Gathered()
    for name, value in options.items():
        if value is not None and name in names:
            gathered.add(name, value, f"option --{name.replace('_', '-')}")
    for name in names:
        if value := environment.get(PREFIX + name.upper()):
            gathered.add(name, value, f"environment {PREFIX}{name.upper()}")
    gathered.mistakes += _misspelt_variables(environment, known)
    if path := config or environment.get(CONFIG):
        _add_file(gathered, Path(path), names, known)
    return gathered


def _misspelt_variables(environment: Iterable[str], known: Collection[str]) -> list[str]:
    """Variables whose names resemble a setting's. Others are ignored: they may belong to another program."""
    strays = sorted(v for v in environment if v.startswith(PREFIX) and v != CONFIG)
    names = {stray: stray.removeprefix(PREFIX).lower() for stray in strays}
    return [
        f"{stray} is not a setting: did you mean {PREFIX}{near.upper()}?"
        for stray, name in names.items()
        if name not in known and (near := nearest(name, known))
    ]


def _add_file(gathered: Gathered, path: Path, names: Collection[str], known: Collection[str]) -> None:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        gathered.mistakes.append(f"the configuration file {path} cannot be read: {error.strerror}")
        return
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        gathered.mistakes.append(f"the configuration file {path} is not TOML: {error}")
        return
    for name, value in table.items():
        if name in names:
            gathered.add(name, value, f"file {path}")
        elif name not in known:
            near = nearest(name, known)
            gathered.mistakes.append(f"{path}: {name} is not a setting" + (f": did you mean {near}?" if near else ""))


def nearest(name: str, known: Collection[str]) -> str | None:
    """The known name that `name` probably misspells."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.85)), None)
