"""Reads settings from command-line options, the environment and a TOML file, in this order of precedence.

All mistakes are reported at once, each with its origin and without secrets.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, PrivateAttr, SecretStr, TypeAdapter, ValidationError, model_validator
from pydantic.fields import FieldInfo

from streampca.errors import SettingsError
from streampca.settings.options import COMMON

PREFIX = "STREAMPCA_"
CONFIG = "STREAMPCA_CONFIG"
MASK = "********"
# User and password in a URL: everything up to the last @, since a password may contain any letter.
_LOGIN = re.compile(r"//.*@")
# The query of a URL, which may hold a signature.
_QUERY = re.compile(r"(://[^?\s]*\?)[^'\"]*")
# If a namespace of Kubernetes has a Service STREAMPCA, its pods get STREAMPCA_PORT with a value that begins so.
_SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://")
_NO_SERVICE_LINKS = ", set by Kubernetes for a Service of this name: set enableServiceLinks: false in the pod's spec"


Rules = tuple[tuple[Callable[[Any], bool], str], ...]
"""Rules between settings: a test whether the settings `s` break the rule, and a sentence that is formatted with `s`."""


class _Source(NamedTuple):
    """The value of a setting before it is validated, and where it comes from."""

    value: Any
    origin: str


_Sources = dict[str, _Source]
"""The source of each setting that is set, by its name."""


class Effective(NamedTuple):
    """The effective value of a setting and its origin. A secret value is _mask."""

    name: str
    value: str
    origin: str


class Settings(BaseModel):
    """Validated settings. `read` takes them from options, environment and file; the constructor from its arguments."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    RULES: ClassVar[Rules] = ()
    """The rules that a class adds to those of its bases."""

    _config_file: Path | None = PrivateAttr(None)

    @property
    def config_file(self) -> Path | None:
        """The file that the settings were read from, or None if there was no file."""
        return self._config_file

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        sentences = self._find_broken_rules(self)
        if sentences:
            raise ValueError("; ".join(sentences))
        return self

    @classmethod
    def _find_broken_rules(cls, settings: object) -> list[str]:
        """Return the sentences of the rules that these settings break.

        Some settings may be absent. A rule about an absent setting is not broken.
        """
        sentences: list[str] = []
        for base in reversed(cls.__mro__):
            for is_broken, sentence in vars(base).get("RULES", ()):
                try:
                    if is_broken(settings):
                        sentences.append(sentence.format(s=settings))
                except AttributeError:
                    if isinstance(settings, Settings):  # no setting is absent, so the rule itself is wrong
                        raise
        return sentences

    @classmethod
    def read(cls, config: Path | None = None, **options: Any) -> Self:
        """Return the effective settings. Raises one `SettingsError` that lists every mistake."""
        reading = cls._read(config, options)
        settings = reading.settings
        if settings is None or reading.mistakes:
            raise SettingsError("; ".join(reading.mistakes))
        settings._config_file = _config_path(config)
        return settings

    @classmethod
    def explain(cls, config: Path | None = None, **options: Any) -> tuple[list[Effective], list[str]]:
        """Return every setting's effective value, in the order of `sort_key`, and every mistake."""
        reading = cls._read(config, options)
        sources = dict(reading.sources)
        if reading.settings is not None:  # the validated values are known, such as a default that contains the topic
            for name, value in reading.settings:
                origin = sources[name].origin if name in sources else "default"
                sources[name] = _Source(value, origin)
        fields = sorted(cls.model_fields.items(), key=lambda item: sort_key(*item))
        return [_find_effective(name, field, sources) for name, field in fields], reading.mistakes

    @classmethod
    def _read(cls, config: Path | None, options: Mapping[str, Any]) -> "_Reading[Self]":
        """Read and validate the settings."""
        sources, mistakes = _gather(cls.model_fields, options, config)
        values = {name: source.value for name, source in sources.items()}
        try:
            return _Reading(settings=cls(**values), sources=sources, mistakes=mistakes)
        except ValidationError as error:
            # Broken rules have no location. Pydantic checks no rule if a single value is wrong, so they follow below.
            wrong_values: list[dict[str, Any]] = [{**details} for details in error.errors() if details["loc"]]
        wrong_names = {str(details["loc"][0]) for details in wrong_values}
        mistakes += [_describe(cls, sources, details) for details in wrong_values]
        valid = SimpleNamespace(**_convert_valid(cls, values, wrong_names))
        mistakes += cls._find_broken_rules(valid)
        return _Reading(settings=None, sources=sources, mistakes=mistakes)


S = TypeVar("S", bound=Settings)


class _Reading(NamedTuple, Generic[S]):
    """What `Settings.read` and `Settings.explain` have found."""

    settings: S | None  # None if a value is wrong or a rule is broken
    sources: _Sources
    mistakes: list[str]


def sort_key(name: str, field: FieldInfo) -> tuple[bool, int, str]:
    """Return a key that sorts required settings first, then common ones in their order, then the others by name."""
    common_index = COMMON.index(name) if name in COMMON else len(COMMON)
    return not field.is_required(), common_index, name


def all_fields(kind: type[Settings]) -> dict[str, FieldInfo]:
    """Return the settings of a class and of all its subclasses."""
    fields = dict(kind.model_fields)
    for subclass in kind.__subclasses__():
        fields |= all_fields(subclass)
    return fields


def _convert_valid(kind: type[Settings], values: Mapping[str, Any], wrong_names: set[str]) -> dict[str, Any]:
    """Return the values of all settings except the wrong ones, converted to their types."""
    valid: dict[str, Any] = {}
    for name, field in kind.model_fields.items():
        if name in wrong_names:
            continue
        if name in values:
            type_: Any = Annotated[field.annotation, field]
            valid[name] = TypeAdapter(type_).validate_python(values[name])
        else:
            valid[name] = field.default
    return valid


def _describe(kind: type[Settings], sources: _Sources, details: Mapping[str, Any]) -> str:
    """Say in a sentence what pydantic reports about one setting."""
    name = str(details["loc"][0])
    if details["type"] == "missing":
        return f"{name} is required: set {PREFIX}{name.upper()} or pass --{name.replace('_', '-')}"
    text = str(details["msg"]).removeprefix("Value error, ")
    text = text[:1].lower() + text[1:]
    got = MASK if _is_secret(kind.model_fields[name]) else _mask(repr(details["input"]))
    origin = sources[name].origin if name in sources else "default"
    if _SERVICE_LINK.match(str(details["input"])):
        origin += _NO_SERVICE_LINKS
    return f"{name}: {text}, got {got} ({origin})"


def _find_effective(name: str, field: FieldInfo, sources: _Sources) -> Effective:
    """Return the effective value of a setting and its origin."""
    if name in sources:
        source = sources[name]
    elif field.is_required():
        source = _Source(value=None, origin="missing")
    else:
        source = _Source(value=field.default, origin="default")
    if source.value is None:
        return Effective(name=name, value="", origin=source.origin)
    text = MASK if _is_secret(field) else _mask(str(source.value))
    return Effective(name=name, value=text, origin=source.origin)


def _mask(text: str) -> str:
    """Replace each secret part of a URL in the text by a mask."""
    text = _LOGIN.sub(f"//{MASK}@", text)
    return _QUERY.sub(rf"\g<1>{MASK}", text)


def _is_secret(field: FieldInfo) -> bool:
    return SecretStr in (field.annotation, *get_args(field.annotation))


def _gather(names: Collection[str], options: Mapping[str, Any], config: Path | None) -> tuple[_Sources, list[str]]:
    """Return the values of `names` by precedence, and mistakes in the names of variables and of the file's settings.

    An option that is None and an empty variable count as unset. All commands share file and environment, so a name may
    belong to another command. A name that no command has is a mistake: a misspelt `dead_letter_topic` would otherwise
    go unnoticed until it is needed.
    """
    known_names = all_fields(Settings)
    mistakes = _find_misspelt_variables(known_names)
    path = _config_path(config)
    table = _read_table(path, known_names, mistakes) if path else {}
    sources: _Sources = {}
    for name in names:
        variable = PREFIX + name.upper()
        if options.get(name) is not None:
            sources[name] = _Source(options[name], f"option --{name.replace('_', '-')}")
        elif os.environ.get(variable):
            sources[name] = _Source(os.environ[variable], f"environment {variable}")
        elif name in table:
            sources[name] = _Source(table[name], f"file {path}")
    return sources, mistakes


def _find_misspelt_variables(known_names: Collection[str]) -> list[str]:
    """Return a sentence for each environment variable that resembles a setting.

    A variable that resembles none is ignored, since it may belong to another program.
    """
    mistakes = []
    for variable, value in sorted(os.environ.items()):
        name = variable.removeprefix(PREFIX).lower()
        if not variable.startswith(PREFIX) or variable == CONFIG or name in known_names or _SERVICE_LINK.match(value):
            continue
        nearest = _find_nearest(name, known_names)
        if nearest:
            mistakes.append(f"{variable} is not a setting: did you mean {PREFIX}{nearest.upper()}?")
    return mistakes


def _config_path(option: Path | None) -> Path | None:
    path = option or os.environ.get(CONFIG)
    return Path(path) if path else None


def _read_table(path: Path, known_names: Collection[str], mistakes: list[str]) -> dict[str, Any]:
    """Return the values of a TOML file, and append what is wrong with it to `mistakes`."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        mistakes.append(f"the configuration file {path} cannot be read: {error.strerror}")
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        mistakes.append(f"the configuration file {path} is not TOML: {error}")
        return {}
    for name in table:
        if name not in known_names:
            nearest = _find_nearest(name, known_names)
            suggestion = f": did you mean {nearest}?" if nearest else ""
            mistakes.append(f"{path}: {name} is not a setting{suggestion}")
    return table


def _find_nearest(name: str, known_names: Collection[str]) -> str | None:
    """Return the setting that this name probably means, or None if it resembles no setting."""
    matches = difflib.get_close_matches(name, known_names, n=1, cutoff=0.85)
    return matches[0] if matches else None
