"""Pins: names that users give to versions of a model. A version is not deleted while it has a name.

A pin is a file `models/<topic>/<name>.pin` with the version. It lies beside the models, so that one listing shows both.
"""

import re
from collections.abc import Collection, Mapping

import structlog

from streampca.errors import SettingsError, StreampcaError
from streampca.settings.pins import PIN_NAME
from streampca.stores import checksummed, numbered
from streampca.stores.base import Store, describe_other_topics

log = structlog.get_logger()

_SUFFIX = ".pin"
_MAX_PINS = 10  # of a topic


class UnknownPinError(StreampcaError):
    """No model is pinned by this name."""


def look_up_pin(name: str, pins: Mapping[str, int]) -> int:
    """Return the version that has this name. Raises `UnknownPinError`, which lists the names that exist."""
    _require_pin(name, pins)
    return pins[name]


def _require_pin(name: str, names: Collection[str]) -> None:
    """Raise `UnknownPinError` unless this name is one of the names of pins."""
    if name not in names:
        existing = f"the names there are: {', '.join(names)}" if names else "none is: `streampca pin VERSION` pins one"
        raise UnknownPinError(f"no model is pinned as {name!r}; {existing}")


class Pins:
    """The pins of one topic. Methods raise `StoreError` if the store fails."""

    def __init__(self, store: Store, topic: str) -> None:
        self._store = store
        self._topic = topic
        self._folder = f"models/{topic}"

    def names(self) -> list[str]:
        """List all names, sorted, without reading the versions."""
        files = [path.rsplit("/", 1)[-1] for path in self._store.names(self._folder)]
        return [file.removesuffix(_SUFFIX) for file in files if file.endswith(_SUFFIX)]

    def all(self) -> dict[str, int]:
        """Read all names with their versions. A damaged pin is left out, and logged."""
        pins: dict[str, int] = {}
        for name in self.names():
            try:
                pins[name] = checksummed.decode(self._store.read(self._path(name)), "version", int)
            except FileNotFoundError:  # removed since it was listed
                pass
            except ValueError:
                log.error("pin damaged: pin the version again, or unpin it", name=name, topic=self._topic)
        return pins

    def set(self, name: str, version: int) -> None:
        """Give a name to a version, even if another version has it.

        Raises `SettingsError` if the name is not valid, the version does not exist, or the topic has too many pins.
        """
        if not re.fullmatch(PIN_NAME, name) or name == "latest":
            raise SettingsError(
                f"{name!r} is not a name for a pin: use a letter, then letters, digits, '.', '_' or '-', at most 63; "
                "latest is the newest version"
            )
        self._require_version(version)
        pins = self.all()
        if name not in pins and len(pins) >= _MAX_PINS:
            raise SettingsError(f"{self._topic} has {_MAX_PINS} pins, the most: unpin one of {', '.join(pins)}")
        self._write(name, version)
        try:
            # A worker may have deleted the version before the pin was written.
            self._require_version(version)
        except SettingsError:
            earlier_version = pins.get(name)
            if earlier_version is None:
                self.delete(name)
            else:
                self._write(name, earlier_version)
            raise

    def remove(self, name: str) -> None:
        """Remove a pin, so that its version may be deleted. Raises `UnknownPinError` if there is no such pin."""
        _require_pin(name, self.names())
        self.delete(name)

    def delete(self, name: str) -> None:
        """Remove a pin if there is one."""
        self._store.delete(self._path(name))

    def _write(self, name: str, version: int) -> None:
        self._store.write(self._path(name), checksummed.encode("version", version))

    def _require_version(self, version: int) -> None:
        """Raise `SettingsError` if the version does not exist."""
        versions = numbered.list_numbers(self._store, self._folder)  # ascending
        if version in versions:
            return
        if versions:
            existing = f"`streampca inspect` lists {versions[0]} to {versions[-1]}"
        else:
            other_topics_text = describe_other_topics(self._store, self._topic)
            existing = f"it has none{other_topics_text}"
        raise SettingsError(f"{self._store.location} has no model version {version} of {self._topic}: {existing}")

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}{_SUFFIX}"
