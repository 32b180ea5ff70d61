"""Validated settings, and what `streampca check` shows of them: origins and all mistakes, without secrets."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Generic, NamedTuple, Self, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, PrivateAttr, SecretStr, TypeAdapter, ValidationError, model_validator
from pydantic.fields import FieldInfo

from streampca.errors import SettingsError
from streampca.settings.given_values import PREFIX, SERVICE_LINK, GivenValue, find_config_file, find_given_values
from streampca.settings.options import COMMON

MASK = "********"
# User and password in a URL: everything up to the last @, since a password may contain any letter.
_LOGIN = re.compile(r"//.*@")
# The query of a URL, which may hold a signature.
_QUERY = re.compile(r"(://[^?\s]*\?)[^'\"]*")
_NO_SERVICE_LINKS = ", set by Kubernetes for a Service of this name: set enableServiceLinks: false in the pod's spec"
_DEFAULT = "default"
_MISSING = "missing"

Rules = tuple[tuple[Callable[[Any], bool], str], ...]
"""Rules between settings. Each is a test whether settings `s` break the rule, and a sentence that says what is wrong.

The sentence is formatted with `s`.
"""


class EffectiveSetting(NamedTuple):
    """A setting as `streampca check` shows it."""

    name: str
    value: str  # "" if there is none; of a secret, only a mask
    origin: str  # such as "option --topic", "default", or "missing" for a required setting that is not given

    @property
    def is_given(self) -> bool:
        """True if an option, the environment or the file sets it."""
        return self.origin not in (_DEFAULT, _MISSING)


class Settings(BaseModel):
    """Validated settings. `read` takes them from options, environment and file; the constructor from its arguments."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    RULES: ClassVar[Rules] = ()
    """Rules between the settings. A class has the rules of its bases, too."""

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
    def _find_broken_rules(cls, settings: object, *, ignore_absent: bool = False) -> list[str]:
        """Return the sentences of the rules that these settings break.

        A rule is a function that tells whether settings break it, and a sentence about this. With `ignore_absent`, a
        rule is ignored if its function asks for a setting that is absent.
        """
        sentences: list[str] = []
        for base in reversed(cls.__mro__):
            own_rules = vars(base).get("RULES", ())
            for is_broken, sentence in own_rules:
                try:
                    if is_broken(settings):
                        sentences.append(sentence.format(s=settings))
                except AttributeError:  # the rule has asked for an absent setting
                    if not ignore_absent:
                        raise
        return sentences

    @classmethod
    def read(cls, config: Path | None = None, **options: Any) -> Self:
        """Return the effective settings. Raises one `SettingsError` that lists every mistake."""
        reading = cls._read(config, options)
        settings = reading.settings
        if settings is None or reading.mistakes:
            raise SettingsError("; ".join(reading.mistakes))
        settings._config_file = find_config_file(config)
        return settings

    @classmethod
    def explain(cls, config: Path | None = None, **options: Any) -> tuple[list[EffectiveSetting], list[str]]:
        """Return every setting with its effective value, and every mistake.

        Required settings come first, then common ones, then the remaining ones by name.
        """
        reading = cls._read(config, options)
        fields = sorted(cls.model_fields.items(), key=lambda item: sort_key(*item))
        return [_describe_setting(name, field, reading) for name, field in fields], reading.mistakes

    @classmethod
    def _read(cls, config: Path | None, options: Mapping[str, Any]) -> "_Reading[Self]":
        """Read and validate the settings, and find every mistake."""
        # The names of the settings of all commands: a setting of another command in the file is not a mistake.
        known_names = collect_fields(Settings)
        given, mistakes = find_given_values(cls.model_fields, known_names, options, find_config_file(config))
        values = {name: given_value.value for name, given_value in given.items()}
        try:
            return _Reading(settings=cls(**values), given=given, mistakes=mistakes)
        except ValidationError as error:
            mistakes += cls._list_mistakes(error, given, values)
            return _Reading(settings=None, given=given, mistakes=mistakes)

    @classmethod
    def _list_mistakes(
        cls, error: ValidationError, given: Mapping[str, GivenValue], values: Mapping[str, Any]
    ) -> list[str]:
        """Describe each wrong value, and each broken rule between the settings whose values are valid.

        If a value is wrong, pydantic does not check the rules (`_check_rules`), so they are checked here.
        """
        # Errors without a location ("loc") are of broken rules, which are found below.
        wrong_values: list[Mapping[str, Any]] = [details for details in error.errors() if details["loc"]]
        wrong_names = {str(details["loc"][0]) for details in wrong_values}
        valid_settings = SimpleNamespace(**_convert_valid(cls, values, wrong_names))
        broken_rules = cls._find_broken_rules(valid_settings, ignore_absent=True)
        return [_describe_mistake(cls, given, details) for details in wrong_values] + broken_rules


S = TypeVar("S", bound=Settings)


class _Reading(NamedTuple, Generic[S]):
    """What `Settings.read` and `Settings.explain` have found."""

    settings: S | None  # None if a value is wrong or a rule is broken
    given: dict[str, GivenValue]  # by the name of the setting
    mistakes: list[str]


def sort_key(name: str, field: FieldInfo) -> tuple[bool, int, str]:
    """Return a key that sorts required settings first, then common ones in their order, then the others by name."""
    common_index = COMMON.index(name) if name in COMMON else len(COMMON)
    return not field.is_required(), common_index, name


def collect_fields(settings_class: type[Settings]) -> dict[str, FieldInfo]:
    """Return the settings of a class and of all its subclasses."""
    fields = dict(settings_class.model_fields)
    for subclass in settings_class.__subclasses__():
        fields |= collect_fields(subclass)
    return fields


def _convert_valid(settings_class: type[Settings], values: Mapping[str, Any], wrong_names: set[str]) -> dict[str, Any]:
    """Return the values of all settings except the wrong ones, converted to their types."""
    valid: dict[str, Any] = {}
    for name, field in settings_class.model_fields.items():
        if name in wrong_names:
            continue
        if name in values:
            type_: Any = Annotated[field.annotation, field]  # with the limits of the field
            valid[name] = TypeAdapter(type_).validate_python(values[name])
        else:
            valid[name] = field.default
    return valid


def _describe_mistake(
    settings_class: type[Settings], given: Mapping[str, GivenValue], details: Mapping[str, Any]
) -> str:
    """Say in a sentence what is wrong with one setting. `details` is an item of pydantic's `errors()`."""
    name = str(details["loc"][0])
    if details["type"] == "missing":
        return f"{name} is required: set {PREFIX}{name.upper()} or pass --{name.replace('_', '-')}"
    text = str(details["msg"]).removeprefix("Value error, ")
    text = text[:1].lower() + text[1:]
    value = details["input"]
    shown_value = MASK if _is_secret(settings_class.model_fields[name]) else _mask_secrets_in_urls(repr(value))
    origin = given[name].origin if name in given else _DEFAULT
    is_set_by_kubernetes = SERVICE_LINK.match(str(value))  # for a Service: STREAMPCA_PORT=tcp://10.0.0.1:80
    if is_set_by_kubernetes:
        origin += _NO_SERVICE_LINKS
    return f"{name}: {text}, got {shown_value} ({origin})"


def _describe_setting(name: str, field: FieldInfo, reading: _Reading[Any]) -> EffectiveSetting:
    """Return a setting as it is shown: its name, its value as a text, and the origin of the value.

    If it is not given, its default is shown. A required setting has no default, so its origin is "missing".
    """
    if name in reading.given:
        shown = reading.given[name]
    elif field.is_required():
        shown = GivenValue(None, _MISSING)
    else:
        shown = GivenValue(field.default, _DEFAULT)
    value = shown.value
    if reading.settings is not None:  # then show the validated value: a default may depend on other settings
        value = getattr(reading.settings, name)
    if value is None:
        text = ""
    elif _is_secret(field):
        text = MASK
    else:
        text = _mask_secrets_in_urls(str(value))
    return EffectiveSetting(name=name, value=text, origin=shown.origin)


def _mask_secrets_in_urls(text: str) -> str:
    """Replace each secret part of a URL in the text by a mask."""
    text = _LOGIN.sub(f"//{MASK}@", text)
    return _QUERY.sub(rf"\g<1>{MASK}", text)


def _is_secret(field: FieldInfo) -> bool:
    return SecretStr in (field.annotation, *get_args(field.annotation))
