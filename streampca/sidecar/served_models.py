"""The models that a sidecar serves, by version or by the name of a pin, and whether it is ready to serve."""

import time
from collections.abc import Callable

from streampca.fold.model_file import PublishedModel
from streampca.pca.drift import drift
from streampca.stores.model_cache import ModelCache
from streampca.stores.models import Models
from streampca.stores.pins import Pins, pinned_version

# A listing shows only the names of pins. Their versions are read less often: each request to a bucket costs money.
_READ_PINS_EVERY_S = 9.0


class ServedModels:
    """A cache of models, with the pins of the topic and how far the newest model has moved from each."""

    def __init__(
        self,
        models: Models,
        clock: Callable[[], float] = time.time,
        on_load: Callable[[PublishedModel], None] = lambda published: None,
    ) -> None:
        """Each model that is read is passed to `on_load`, in the thread that reads it."""
        self.cache = ModelCache(models, clock, on_load, after_poll=self._refresh_pins)
        self.pins: dict[str, int] = {}  # name → version
        self.drifts: dict[str, dict[str, float]] = {}  # name → version of the pin, and the fields of its `Drift`
        self.compared: PublishedModel | None = None  # the model whose drift from the pinned ones `drifts` holds
        self._clock = clock
        self._pin_names: list[str] = []  # in the listing of the store when the pins were last read
        self._pins_due = 0.0  # when the pins are read again even if their names are the same

    def get_loaded(self, version: int | str | None) -> PublishedModel:
        """Return the model of a version or of a pin; None means the newest.

        Raises `NotLoadedError` if it is not in memory.
        """
        if isinstance(version, str):
            version = pinned_version(version, self.pins)
        return self.cache.get_loaded(version)

    def age_s(self) -> float | None:
        """Return the seconds since the newest loaded model was published; None if there is none."""
        current = self.cache.current
        return None if current is None else max(0.0, self._clock() - current.published_at)

    def reasons_not_ready(self, max_age_s: float | None) -> dict[str, str]:
        """Return why this sidecar should get no requests, by the kind of failure; {} if it is ready."""
        reasons: dict[str, str] = {}
        if self.cache.store_error:
            reasons["store"] = f"the store cannot be read: {self.cache.store_error}"
        age = self.age_s()
        if age is None:
            reasons["no model"] = self.cache.why_none()
        elif max_age_s is not None and age > max_age_s:
            reasons["old model"] = f"the newest model was published {age:.0f} s ago, more than {max_age_s:g} s"
        return reasons

    def _refresh_pins(self, listed: Models) -> None:
        """Read the pins, and compare the newest model with the pinned ones, if they may have changed.

        The pins are read if the listing has other names, if there is a newer model, or if they were read some time ago.
        """
        newest = self.cache.current
        if newest is None:
            return
        pins = Pins(listed.store, listed.topic)
        names = pins.names()
        is_newer = newest is not self.compared
        is_due = is_newer or self._clock() >= self._pins_due
        if names == self._pin_names and not (names and is_due):
            return
        before = self.pins
        self.pins = pins.all() if names else {}
        self.cache.pinned = frozenset(self.pins.values())
        if is_newer or self.pins != before:
            self.compared = None  # if reading a pinned model raises, the next poll tries again
            self.drifts = self._compare_with_pinned(newest)
        self.compared = newest
        self._pin_names = names
        self._pins_due = self._clock() + _READ_PINS_EVERY_S

    def _compare_with_pinned(self, newest: PublishedModel) -> dict[str, dict[str, float]]:
        """Return the drift of the newest model from each pinned one that can be read and has as many dimensions."""
        drifts: dict[str, dict[str, float]] = {}
        for name, version in self.pins.items():
            pinned = self.cache.readable(version, self.cache.get)
            if pinned is not None and pinned.model.dimensions == newest.model.dimensions:
                drifts[name] = {"version": version, **drift(pinned.model, newest.model)._asdict()}
        return drifts
