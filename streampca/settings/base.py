"""Reading settings, and reporting every mistake in them at once, with its origin and without secrets."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_args

from pydantic import BaseModel, ConfigDict, SecretStr, TypeAdapter, ValidationError, model_validator
from pydantic.fields import FieldInfo

from streampca.errors import SettingsError
from streampca.settings.layers import PREFIX, Gathered, gather
from streampca.settings.options import COMMON

MASK = "********"
# Users and passwords in URLs, to the last @, since a password may hold any letter; and queries, which may be signed.
_LOGIN, _QUERY = re.compile(r"//.*@"), re.compile(r"(://[^?\s]*\?)[^'\"]*")


Rules = tuple[tuple[Callable[[Any], bool], str], ...]
"""Constraints between settings: a function that tells whether one is broken, and a sentence, a template over `s`."""


def existing_file(path: Path | None) -> Path | None:
    """The path, if it is a file; a validator for settings. Raises `ValueError`."""
    if path is not None and not path.is_file():
        raise ValueError("no such file")
    return path


class Effective(NamedTuple):
    """A setting's effective value, secrets masked, and its origin."""

    name: str
    value: str
    origin: str


class Settings(BaseModel):
    """Validated settings. The constructor takes plain values; `read` also reads the environment and the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    RULES: ClassVar[Rules] = ()
    """The constraints that a class adds to those of its bases."""

    @classmethod
    def fields(cls) -> dict[str, FieldInfo]:
        """The settings in the order of `sort_key`."""
        return dict(sorted(cls.model_fields.items(), key=lambda item: sort_key(*item)))

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
        return settings

    @classmethod
    def explain(cls, config: Path | None = None, **options: Any) -> tuple[list[Effective], list[str]]:
        """Every setting's effective value, and every mistake."""
        settings, gathered, mistakes = cls._read(config, options)
        values = gathered.values if settings is None else dict(settings)
        return [_effective(name, field, values, gathered.origins) for name, field in cls.fields().items()], mistakes

    @classmethod
    def _read(cls, config: Path | None, options: Mapping[str, Any]) -> tuple[Self | None, Gathered, list[str]]:
        """The settings unless one is wrong, their sources, and every mistake."""
        gathered = gather(cls.model_fields, set(all_fields(Settings)), options, config, os.environ)
        try:
            return cls(**gathered.values), gathered, gathered.mistakes
        except ValidationError as error:
            single: list[dict[str, Any]] = [{**e} for e in error.errors() if e["loc"]]
        wrong = {str(e["loc"][0]) for e in single}
        broken = cls._broken_rules(SimpleNamespace(**_valid_values(cls, gathered.values, wrong)))
        return None, gathered, [*gathered.mistakes, *(_sentence(cls, gathered, e) for e in single), *broken]


def sort_key(name: str, field: FieldInfo) -> tuple[bool, int, str]:
    """A key to sort settings by: required ones, then common ones, then the others by name."""
    return not field.is_required(), COMMON.index(name) if name in COMMON else len(COMMON), name


def all_fields(kind: type[Settings]) -> dict[str, FieldInfo]:
    """The settings of a class and of all its subclasses."""
    fields = dict(kind.model_fields)
    for subclass in kind.__subclasses__():
        fields |= all_fields(subclass)
    return fields


def _valid_values(kind: type[Settings], values: Mapping[str, Any], wrong: set[str]) -> dict[str, Any]:
    """The settings that are valid by themselves, converted."""
    valid: dict[str, Any] = {}
    for name, field in kind.model_fields.items():
        if name not in wrong:
            type_: Any = Annotated[field.annotation, field]
            valid[name] = TypeAdapter(type_).validate_python(values[name]) if name in values else field.default
    return valid


def _sentence(kind: type[Settings], gathered: Gathered, mistake: Mapping[str, Any]) -> str:
    name = str(mistake["loc"][0])
    if mistake["type"] == "missing":
        return f"{name} is required: set {PREFIX}{name.upper()} or pass --{name.replace('_', '-')}"
    text = str(mistake["msg"]).removeprefix("Value error, ")
    field = kind.model_fields[name]
    got = MASK if _is_secret(field) else masked(repr(mistake["input"]))
    return f"{name}: {text[:1].lower() + text[1:]}, got {got} ({gathered.origins.get(name, 'default')})"


def _effective(name: str, field: FieldInfo, values: Mapping[str, Any], origins: Mapping[str, str]) -> Effective:
    if name not in values and field.is_required():
        return Effective(name, "", "missing")
    value = values.get(name, field.default)
    shown = "" if value is None else MASK if _is_secret(field) else masked(str(value))
    return Effective(name, shown, origins.get(name, "default"))


def masked(text: str) -> str:
    """The text without the secrets of the URLs in it."""
    return _QUERY.sub(rf"\g<1>{MASK}", _LOGIN.sub(f"//{MASK}@", text))


def _is_secret(field: FieldInfo) -> bool:
    return SecretStr in (field.annotation, *get_args(field.annotation))
