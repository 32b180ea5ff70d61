"""Names of models that are kept: `models/<topic>/<name>.pin`, beside the models, so that one listing shows both."""

import re
from collections.abc import Mapping

import structlog

from streampca.errors import SettingsError, StreampcaError
from streampca.settings.pins import PIN_NAME
from streampca.stores import numbered
from streampca.stores.base import Store, other_topics
from streampca.stores.sealed import seal, value_in

log = structlog.get_logger()

_SUFFIX, _MOST = ".pin", 10


class UnknownPinError(StreampcaError):
    """No model is pinned by this name."""


def pinned_version(name: str, pins: Mapping[str, int]) -> int:
    """The version that is pinned by this name. Raises `UnknownPinError` with the names there are."""
    if name not in pins:
        names = f"the names there are: {', '.join(pins)}" if pins else "none is: `streampca pin VERSION` pins one"
        raise UnknownPinError(f"no model is pinned as {name!r}; {names}")
    return pins[name]


class Pins:
    """The pins of one topic. Methods raise `StoreError` if the store fails."""

    def __init__(self, store: Store, topic: str) -> None:
        self._store, self._topic, self._folder = store, topic, f"models/{topic}"

    def names(self) -> list[str]:
        """All names, sorted, from a listing alone."""
        files = [path.rsplit("/", 1)[-1] for path in self._store.names(self._folder)]
        return [file.removesuffix(_SUFFIX) for file in files if file.endswith(_SUFFIX)]

    def all(self) -> dict[str, int]:
        """Names and versions; each takes a read. A damaged one is left out, and logged."""
        pins: dict[str, int] = {}
        for name in self.names():
            try:
                pins[name] = value_in(self._store.read(self._path(name)), "version", int)
            except FileNotFoundError:  # removed since it was listed
                pass
            except ValueError:
                log.error("pin damaged: pin the version again, or unpin it", name=name, topic=self._topic)
        return pins

    def set(self, name: str, version: int) -> None:
        """Let the name mean a version, and no other any more. Raises `SettingsError` if that cannot be."""
        if not re.fullmatch(PIN_NAME, name) or name == "latest":
            raise SettingsError(
                f"{name!r} is no name for a pin: use a letter, then letters, digits, '.', '_' or '-', at most 63; "
                "latest is the newest version"
            )
        self._refuse_missing(version)
        pins = self.all()
        if name not in pins and len(pins) >= _MOST:
            raise SettingsError(f"{self._topic} has {_MOST} pins, the most: unpin one of {', '.join(pins)}")
        self._write(name, version)
        try:
            self._refuse_missing(version)  # a publisher that had read the pins before may have deleted it
        except SettingsError:
            if name in pins:
                self._write(name, pins[name])
            else:
                self.delete(name)
            raise

    def remove(self, name: str) -> None:
        """Let a version go. Raises `UnknownPinError`."""
        pinned_version(name, dict.fromkeys(self.names(), 0))
        self.delete(name)

    def delete(self, name: str) -> None:
        """Remove a pin if there is one."""
        self._store.delete(self._path(name))

    def _write(self, name: str, version: int) -> None:
        self._store.write(self._path(name), seal("version", version))

    def _refuse_missing(self, version: int) -> None:
        if version not in (versions := numbered.numbers(self._store, self._folder)):
            held = "it has none" + other_topics(self._store, self._topic)
            if versions:
                held = f"`streampca inspect` lists {versions[0]} to {versions[-1]}"
            raise SettingsError(f"{self._store.location} has no model version {version} of {self._topic}: {held}")

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}{_SUFFIX}"
