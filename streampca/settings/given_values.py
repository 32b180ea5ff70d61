"""Finds the values that settings are given: as command-line options, in the environment, and in a TOML file."""

import difflib
import os
import re
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

PREFIX = "STREAMPCA_"
_CONFIG_VARIABLE = "STREAMPCA_CONFIG"
_NOT_SETTINGS = (_CONFIG_VARIABLE, "STREAMPCA_TOKEN")  # `streampca project` reads the token
# If a namespace of Kubernetes has a Service STREAMPCA or STREAMPCA-…, its pods get variables with such names or values.
SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://")
_SERVICE_VARIABLE = re.compile(r"STREAMPCA_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)_\w+)")


class GivenValue(NamedTuple):
    """The value of a setting before it is validated, and where it was given."""

    value: Any
    origin: str


def find_config_file(option: Path | None) -> Path | None:
    """Return the TOML file that the option `--config` or the environment names; None if neither names a file."""
    path = option or os.environ.get(_CONFIG_VARIABLE)
    return Path(path) if path else None


def find_given_values(
    names: Collection[str], known_names: Collection[str], options: Mapping[str, Any], config_file: Path | None
) -> tuple[dict[str, GivenValue], list[str]]:
    """Return the given values of the settings `names`, and sentences about unknown names.

    An option takes precedence over the environment, and the environment over the file. `known_names` has the settings
    of all commands.
    """
    mistakes = [
        f"{variable} is not a setting: did you mean {PREFIX}{nearest.upper()}?"
        for variable, nearest in find_unknown_variables(known_names).items()
        if nearest is not None
    ]
    table: dict[str, Any] = {}
    if config_file:
        table, mistakes_in_file = _read_file(config_file, known_names)
        mistakes += mistakes_in_file
    given: dict[str, GivenValue] = {}
    for name in names:
        variable = PREFIX + name.upper()
        if options.get(name) is not None:
            given[name] = GivenValue(options[name], f"option --{name.replace('_', '-')}")
        elif os.environ.get(variable):
            given[name] = GivenValue(os.environ[variable], f"environment {variable}")
        elif name in table:
            given[name] = GivenValue(table[name], f"file {config_file}")
    return given, mistakes


def find_unknown_variables(known_names: Collection[str]) -> dict[str, str | None]:
    """Return each variable STREAMPCA_… that is not a setting, with the setting that its name resembles, or None.

    The variable of a setting is in capitals: with other letters, it is not read. Variables that Kubernetes sets for
    Services are left out.
    """
    unknown: dict[str, str | None] = {}
    for variable, value in sorted(os.environ.items()):
        if not variable.upper().startswith(PREFIX) or variable in _NOT_SETTINGS:
            continue
        name = variable.upper().removeprefix(PREFIX).lower()
        is_setting = name in known_names and variable.isupper()
        is_of_service = SERVICE_LINK.match(value) or _SERVICE_VARIABLE.fullmatch(variable)
        if not is_setting and not is_of_service:
            unknown[variable] = _find_nearest(name, known_names)
    return unknown


def list_foreign_variables(known_names: Collection[str]) -> list[str]:
    """Return the variables STREAMPCA_… that neither are settings nor resemble one."""
    return [variable for variable, nearest in find_unknown_variables(known_names).items() if nearest is None]


def _read_file(path: Path, known_names: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the values in a TOML file, and sentences about what is wrong with the file and its names."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        return {}, [f"the configuration file {path} cannot be read: {error.strerror}"]
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return {}, [f"the configuration file {path} is not TOML: {error}"]
    mistakes = []
    for name in table:
        if name not in known_names:
            nearest = _find_nearest(name, known_names)
            suggestion = f": did you mean {nearest}?" if nearest else ""
            mistakes.append(f"{path}: {name} is not a setting{suggestion}")
    return table, mistakes


def _find_nearest(name: str, known_names: Collection[str]) -> str | None:
    """Return the setting that this name probably means, or None if it resembles no setting."""
    matches = difflib.get_close_matches(name, known_names, n=1, cutoff=0.85)
    return matches[0] if matches else None
