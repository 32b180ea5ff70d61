"""Reading settings, and reporting every mistake in them at once, with its origin and without secrets."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_args

from pydantic import BaseModel, ConfigDict, SecretStr, TypeAdapter, ValidationError, model_validator
from pydantic.fields import FieldInfo

from streampca.common_settings import COMMON
from streampca.errors import SettingsError
from streampca.settings.layers import PREFIX, Gathered, gather

MASK = "********"
# Users and passwords in URLs, to the last @, since a password may hold any letter; and queries, which may be signed.
_LOGIN, _QUERY = re.compile(r"//.*@"), re.compile(r"(://[^?\s]*\?)[^'\"]*")


class Rule(NamedTuple):
    """A constraint between several settings; checked only when each of `names` is valid by itself."""

    names: tuple[str, ...]
    broken: Callable[[Any], bool]
    sentence: str  # a template over `s`, the settings


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

    RULES: ClassVar[tuple[Rule, ...]] = ()
    """The constraints that a class adds to those of its bases."""

    @classmethod
    def rules(cls) -> list[Rule]:
        """Constraints between several settings."""
        return [rule for kind in reversed(cls.__mro__) for rule in vars(kind).get("RULES", ())]

    @classmethod
    def fields(cls) -> dict[str, FieldInfo]:
        """The settings in the order of `place`."""
        return dict(sorted(cls.model_fields.items(), key=lambda item: place(*item)))

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        if sentences := [rule.sentence.format(s=self) for rule in self.rules() if rule.broken(self)]:
            raise ValueError("; ".join(sentences))
        return self

    @classmethod
    def read(cls, config: Path | None = None, **options: Any) -> Self:
        """The effective settings. Raises one `SettingsError` that lists every mistake."""
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
        """Every setting's effective value, and every mistake."""
        gathered = cls._gather(config, options)
        try:
            values: Mapping[str, Any] = dict(cls(**gathered.values))
            mistakes = gathered.mistakes
        except ValidationError as error:
            values = gathered.values
            mistakes = _mistakes(cls, gathered, error)
        return [_effective(name, field, values, gathered.origins) for name, field in cls.fields().items()], mistakes

    @classmethod
    def _gather(cls, config: Path | None, options: Mapping[str, Any]) -> Gathered:
        return gather(cls.model_fields, set(all_fields(Settings)), options, config, os.environ)


def place(name: str, field: FieldInfo) -> tuple[bool, int, str]:
    """A key to sort settings by: required ones, then common ones, then the others by name."""
    return not field.is_required(), COMMON.index(name) if name in COMMON else len(COMMON), name


def all_fields(kind: type[Settings]) -> dict[str, FieldInfo]:
    """The settings of a class and of all its subclasses."""
    found = dict(kind.model_fields)
    for each in kind.__subclasses__():
        found |= all_fields(each)
    return found


def _mistakes(kind: type[Settings], gathered: Gathered, error: ValidationError) -> list[str]:
    """Mistakes in the sources, in single settings, and in rules between valid settings."""
    single: list[dict[str, Any]] = [{**e} for e in error.errors() if e["loc"]]
    wrong = {str(e["loc"][0]) for e in single}
    valid = kind.model_construct(None, **_valid_values(kind, gathered.values, wrong))
    broken = [
        rule.sentence.format(s=valid)
        for rule in kind.rules()
        if wrong.isdisjoint(rule.names) and rule.broken(valid)
    ]  # fmt: skip
    return gathered.mistakes + [_sentence(kind, gathered, e) for e in single] + broken


def _valid_values(kind: type[Settings], values: Mapping[str, Any], wrong: set[str]) -> dict[str, Any]:
    """Converted values of the settings that are valid by themselves."""
    fields = {name: field for name, field in kind.model_fields.items() if name in values and name not in wrong}
    types: dict[str, Any] = {name: Annotated[field.annotation, field] for name, field in fields.items()}
    return {name: TypeAdapter(kind_of).validate_python(values[name]) for name, kind_of in types.items()}


def _sentence(kind: type[Settings], gathered: Gathered, mistake: Mapping[str, Any]) -> str:
    name = str(mistake["loc"][0])
    if mistake["type"] == "missing":
        return f"{name} is required: set {PREFIX}{name.upper()} or pass --{name.replace('_', '-')}"
    if mistake["type"] == "extra_forbidden":
        return f"{name} is not a setting of this command"
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
