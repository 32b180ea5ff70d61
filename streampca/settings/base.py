"""How settings are read and how mistakes in them are told: all at once, each with what set it and no secret shown."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, SecretStr, TypeAdapter, ValidationError, model_validator
from pydantic.fields import FieldInfo

from streampca.errors import SettingsError
from streampca.settings.layers import PREFIX, Gathered, gather

MASK = "********"
_LOGIN = re.compile(r"//[^/]*@")  # user and password in a URL
S = TypeVar("S", contravariant=True)


@dataclass(frozen=True, slots=True)
class Rule(Generic[S]):
    """What must hold between several settings; asked only when each of `names` is right by itself."""

    names: tuple[str, ...]
    broken: Callable[[S], bool]
    sentence: str  # a template over `s`, the settings


def existing_file(path: Path | None) -> Path | None:
    """The path, if a file is there: a validator for settings. Raises `ValueError`."""
    if path is not None and not path.is_file():
        raise ValueError("there is no such file")
    return path


@dataclass(frozen=True, slots=True)
class Effective:
    """A setting as it is in force: its value fit to be shown, and what set it."""

    name: str
    value: str
    origin: str


class Settings(BaseModel):
    """Settings by name. Made directly, they take what they are given; `read` asks the environment and the file too."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def rules(cls) -> list[Rule[Self]]:
        """What must hold between several settings."""
        return []

    @model_validator(mode="after")
    def _keeps_the_rules(self) -> Self:
        if sentences := [rule.sentence.format(s=self) for rule in self.rules() if rule.broken(self)]:
            raise ValueError("; ".join(sentences))
        return self

    @classmethod
    def read(cls, config: Path | None = None, **options: Any) -> Self:
        """The effective settings. Raises `SettingsError` that lists every mistake at once."""
        gathered = cls._gather(config, options)
        try:
            settings = cls(**gathered.values)
        except ValidationError as error:
            raise SettingsError("; ".join(_mistakes(cls, gathered, error))) from None
        if gathered.mistakes:
            raise SettingsError("; ".join(gathered.mistakes))
        return settings

    @classmethod
    def explain(cls, config: Path | None = None, **options: Any) -> tuple[list[Effective], list[str]]:
        """Every setting as it would be in force, and every mistake."""
        gathered = cls._gather(config, options)
        try:
            values: Mapping[str, Any] = dict(cls(**gathered.values))
            mistakes = gathered.mistakes
        except ValidationError as error:
            values = gathered.values
            mistakes = _mistakes(cls, gathered, error)
        return [_effective(name, field, values, gathered.origins) for name, field in cls.model_fields.items()], mistakes

    @classmethod
    def _gather(cls, config: Path | None, options: Mapping[str, Any]) -> Gathered:
        return gather(cls.model_fields, _all_names(Settings), options, config, os.environ)


def _all_names(kind: type[Settings]) -> set[str]:
    """Names of the settings of a class and of all that derive from it."""
    return set(kind.model_fields).union(*(_all_names(k) for k in kind.__subclasses__()))


def _mistakes(kind: type[Settings], gathered: Gathered, error: ValidationError) -> list[str]:
    """Mistakes of the sources, of single settings, and of rules between those settings that are right."""
    single: list[dict[str, Any]] = [{**e} for e in error.errors() if e["loc"]]
    wrong = {str(e["loc"][0]) for e in single}
    sound = kind.model_construct(None, **_sound_values(kind, gathered.values, wrong))
    broken = [
        rule.sentence.format(s=sound)
        for rule in kind.rules()
        if wrong.isdisjoint(rule.names) and rule.broken(sound)
    ]  # fmt: skip
    return gathered.mistakes + [_sentence(kind, gathered, e) for e in single] + broken


def _sound_values(kind: type[Settings], values: Mapping[str, Any], wrong: set[str]) -> dict[str, Any]:
    """Converted values of the settings that are right by themselves."""
    fields = {name: field for name, field in kind.model_fields.items() if name in values and name not in wrong}
    types: dict[str, Any] = {name: Annotated[field.annotation, field] for name, field in fields.items()}
    return {name: TypeAdapter(kind_of).validate_python(values[name]) for name, kind_of in types.items()}


def _sentence(kind: type[Settings], gathered: Gathered, mistake: Mapping[str, Any]) -> str:
    name = str(mistake["loc"][0])
    if mistake["type"] == "missing":
        return f"{name} is required: set {PREFIX}{name.upper()} or give --{name.replace('_', '-')}"
    if mistake["type"] == "extra_forbidden":
        return f"{name} is no setting of this command"
    text = str(mistake["msg"]).removeprefix("Value error, ")
    field = kind.model_fields[name]
    got = MASK if _is_secret(field) else _LOGIN.sub(f"//{MASK}@", repr(mistake["input"]))
    return f"{name}: {text[:1].lower() + text[1:]}, got {got} ({gathered.origins.get(name, 'default')})"


def _effective(name: str, field: FieldInfo, values: Mapping[str, Any], origins: Mapping[str, str]) -> Effective:
    if name not in values and field.is_required():
        return Effective(name, "", "missing")
    value = values.get(name, field.default)
    shown = "" if value is None else MASK if _is_secret(field) else str(value)
    return Effective(name, shown, origins.get(name, "default"))


def _is_secret(field: FieldInfo) -> bool:
    return SecretStr in (field.annotation, *get_args(field.annotation))
