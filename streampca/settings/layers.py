"""Where the values of settings come from: options, the environment, a TOML file; and which of them won.

Nothing is validated here, apart from names: a name that is meant for a setting but misses it is a mistake, since
a misspelt `dead_letter_topic` would otherwise be noticed on the day it is needed.
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
    """Raw values by name, what set each, and what was wrong with the sources themselves."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    mistakes: list[str] = field(default_factory=list)

    def add(self, name: str, value: Any, origin: str) -> None:
        """Take the value unless a source that comes first has set it."""
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
    """Values of `names`; `known` are the names of all settings of all commands, which share environment and file.

    `options` that are None and environment variables that are empty are unset.
    """
    gathered = Gathered()
    for name, value in options.items():
        if value is not None:
            gathered.add(name, value, f"option --{name.replace('_', '-')}")
    for name in names:
        if value := environment.get(PREFIX + name.upper()):
            gathered.add(name, value, f"environment {PREFIX}{name.upper()}")
    gathered.mistakes += _misspelt_variables(environment, known)
    if path := config or environment.get(CONFIG):
        _add_file(gathered, Path(path), names, known)
    return gathered


def _misspelt_variables(environment: Iterable[str], known: Collection[str]) -> list[str]:
    """Variables that are a slip away from a setting's. Others are left alone: they may be another program's."""
    strays = sorted(v for v in environment if v.startswith(PREFIX) and v != CONFIG)
    names = {stray: stray.removeprefix(PREFIX).lower() for stray in strays}
    return [
        f"{stray} is no setting: is {PREFIX}{near.upper()} meant?"
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
            gathered.mistakes.append(f"{path}: {name} is no setting" + (f": is {near} meant?" if near else ""))


def nearest(name: str, known: Collection[str]) -> str | None:
    """The known name that `name` is probably a slip of."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.85)), None)
