"""Reads settings from options, the environment and a TOML file, in this order of precedence.

Reports every mistake in them at once, with its origin and without secrets.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_args

from pydantic import BaseModel, ConfigDict, PrivateAttr, SecretStr, TypeAdapter, ValidationError, model_validator
from pydantic.fields import FieldInfo

from streampca.errors import SettingsError
from streampca.settings.options import COMMON

PREFIX, CONFIG = "STREAMPCA_", "STREAMPCA_CONFIG"
MASK = "********"
# Users and passwords in URLs, to the last @, since a password may hold any letter; and queries, which may be signed.
_LOGIN, _QUERY = re.compile(r"//.*@"), re.compile(r"(://[^?\s]*\?)[^'\"]*")
# What Kubernetes sets NAME_PORT to, in the pods of a namespace that has a Service of this name.
_SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://")
_NO_SERVICE_LINKS = ", set by Kubernetes for a Service of this name: set enableServiceLinks: false in the pod's spec"


Rules = tuple[tuple[Callable[[Any], bool], str], ...]
"""Constraints between settings: a function that tells whether one is broken, and a sentence, a template over `s`."""


_Sources = dict[str, tuple[Any, str]]
"""Raw values and their origins, by name."""


class Effective(NamedTuple):
    """A setting's effective value, secrets masked, and its origin."""

    name: str
    value: str
    origin: str


class Settings(BaseModel):
    """Validated settings. The constructor takes plain values; `read` also reads the environment and the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    RULES: ClassVar[Rules] = ()
    """The constraints that a class adds to its bases'."""

    _config_file: Path | None = PrivateAttr(None)

    @property
    def config_file(self) -> Path | None:
        """The file that they were read from, if any."""
        return self._config_file

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        if sentences := self._broken_rules(self):
            raise ValueError("; ".join(sentences))
        return self

    @classmethod
    def _broken_rules(cls, settings: object) -> list[str]:
        """The sentences of the constraints that these settings break; those that lack a setting break none."""
        sentences: list[str] = []
        for broken, sentence in (rule for kind in reversed(cls.__mro__) for rule in vars(kind).get("RULES", ())):
            try:
                if broken(settings):
                    sentences.append(sentence.format(s=settings))
            except AttributeError:
                if isinstance(settings, Settings):  # which lack none
                    raise
        return sentences

    @classmethod
    def read(cls, config: Path | None = None, **options: Any) -> Self:
        """The effective settings. Raises one `SettingsError` that lists every mistake."""
        settings, _, mistakes = cls._read(config, options)
        if settings is None or mistakes:
            raise SettingsError("; ".join(mistakes))
        settings._config_file = _config_of(config)
        return settings

    @classmethod
    def explain(cls, config: Path | None = None, **options: Any) -> tuple[list[Effective], list[str]]:
        """Every setting's effective value, in the order of `sort_key`, and every mistake."""
        settings, sources, mistakes = cls._read(config, options)
        if settings is not None:
            sources = {name: (value, sources.get(name, ("", "default"))[1]) for name, value in settings}
        fields = sorted(cls.model_fields.items(), key=lambda item: sort_key(*item))
        return [_effective(name, field, sources) for name, field in fields], mistakes

    @classmethod
    def _read(cls, config: Path | None, options: Mapping[str, Any]) -> tuple[Self | None, _Sources, list[str]]:
        """The settings unless one is wrong, their sources, and every mistake."""
        sources, mistakes = _gather(cls.model_fields, options, config)
        values = {name: value for name, (value, _) in sources.items()}
        try:
            return cls(**values), sources, mistakes
        except ValidationError as error:
            single: list[dict[str, Any]] = [{**e} for e in error.errors() if e["loc"]]
        wrong = {str(e["loc"][0]) for e in single}
        broken = cls._broken_rules(SimpleNamespace(**_valid_values(cls, values, wrong)))
        return None, sources, [*mistakes, *(_sentence(cls, sources, e) for e in single), *broken]


def sort_key(name: str, field: FieldInfo) -> tuple[bool, int, str]:
    """A key to sort settings by: required ones, then common ones, then the others by name."""
    return not field.is_required(), COMMON.index(name) if name in COMMON else len(COMMON), name


def all_fields(kind: type[Settings]) -> dict[str, FieldInfo]:
    """The settings of a class and of all its subclasses."""
    inherited = {name: field for subclass in kind.__subclasses__() for name, field in all_fields(subclass).items()}
    return dict(kind.model_fields) | inherited


def _valid_values(kind: type[Settings], values: Mapping[str, Any], wrong: set[str]) -> dict[str, Any]:
    """The settings that are valid by themselves, converted."""
    valid: dict[str, Any] = {}
    for name, field in kind.model_fields.items():
        if name not in wrong:
            type_: Any = Annotated[field.annotation, field]
            valid[name] = TypeAdapter(type_).validate_python(values[name]) if name in values else field.default
    return valid


def _sentence(kind: type[Settings], sources: _Sources, mistake: Mapping[str, Any]) -> str:
    name = str(mistake["loc"][0])
    if mistake["type"] == "missing":
        return f"{name} is required: set {PREFIX}{name.upper()} or pass --{name.replace('_', '-')}"
    text = str(mistake["msg"]).removeprefix("Value error, ")
    field = kind.model_fields[name]
    got = MASK if _is_secret(field) else masked(repr(mistake["input"]))
    _, origin = sources.get(name, (None, "default"))
    if _SERVICE_LINK.match(str(mistake["input"])):
        origin += _NO_SERVICE_LINKS
    return f"{name}: {text[:1].lower() + text[1:]}, got {got} ({origin})"


def _effective(name: str, field: FieldInfo, sources: _Sources) -> Effective:
    unset = (None, "missing") if field.is_required() else (field.default, "default")
    value, origin = sources.get(name, unset)
    shown = "" if value is None else MASK if _is_secret(field) else masked(str(value))
    return Effective(name, shown, origin)


def masked(text: str) -> str:
    """The text without the secrets of the URLs in it."""
    return _QUERY.sub(rf"\g<1>{MASK}", _LOGIN.sub(f"//{MASK}@", text))


def _is_secret(field: FieldInfo) -> bool:
    return SecretStr in (field.annotation, *get_args(field.annotation))


def _gather(names: Collection[str], options: Mapping[str, Any], config: Path | None) -> tuple[_Sources, list[str]]:
    """The values of `names` by precedence, and mistakes. `options` that are None and empty variables count as unset.

    File and environment serve all commands. Names of all settings are validated: a misspelt `dead_letter_topic` would
    otherwise go unnoticed until it is needed.
    """
    all_names, environment = all_fields(Settings), os.environ
    # Variables that resemble no setting are ignored: they may belong to another program.
    own = {v: v.removeprefix(PREFIX).lower() for v in sorted(environment) if v.startswith(PREFIX) and v != CONFIG}
    mistakes = [
        f"{stray} is not a setting: did you mean {PREFIX}{near.upper()}?"
        for stray, name in own.items()
        if name not in all_names and not _SERVICE_LINK.match(environment[stray]) and (near := _nearest(name, all_names))
    ]
    path = _config_of(config)
    table = _table_of(path, all_names, mistakes) if path else {}
    variables = {name: PREFIX + name.upper() for name in names}
    entries = {name: (value, f"file {path}") for name, value in table.items()}
    entries |= {name: (environment[v], f"environment {v}") for name, v in variables.items() if environment.get(v)}
    entries |= {name: (v, f"option --{name.replace('_', '-')}") for name, v in options.items() if v is not None}
    return {name: entry for name, entry in entries.items() if name in names}, mistakes


def _config_of(option: Path | None) -> Path | None:
    path = option or os.environ.get(CONFIG)
    return Path(path) if path else None


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
    return next(iter(difflib.get_close_matches(name, all_names, n=1, cutoff=0.85)), None)
