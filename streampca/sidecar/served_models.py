"""The models that a sidecar serves, by version or by the name of a pin, and whether it is ready to serve.

A pin is a name that users give to a version. The drift of the newest model is how far it has moved from a pinned one.
"""

import math
import time
from collections.abc import Callable
from typing import Any

import structlog

from streampca.fold.model_file import PublishedModel
from streampca.pca.drift import measure_drift
from streampca.sidecar.model_age import ModelAge
from streampca.stores.model_cache import ModelCache
from streampca.stores.models import Models
from streampca.stores.pins import Pins, look_up_pin
from streampca.stores.process_status import ProcessStatuses

log = structlog.get_logger()

# A listing shows only the names of pins. Their versions are read less often: each request to a bucket costs money.
_READ_PINS_EVERY_S = 9.0


class ServedModels:
    """A cache of models, with the pins of the topic and the drift of the newest model from each pinned model."""

    def __init__(
        self,
        models: Models,
        clock: Callable[[], float] = time.monotonic,
        on_load: Callable[[PublishedModel], None] = lambda published: None,
        max_age_s: float | None = None,
    ) -> None:
        """`on_load` is called with each model that was read, in the thread that read it.

        A model is too old after `max_age_s` (None: never).
        """
        self.cache = ModelCache(models, clock, on_load, on_list=self._refresh)  # called after each poll of the store
        statuses = ProcessStatuses(models.store, models.topic)
        # A model is never too old if the statuses of workers show that it has learned every record.
        self._age = ModelAge(statuses, clock, max_age_s or math.inf)
        self.pins: dict[str, int] = {}  # pin → version
        self.drifts: dict[str, dict[str, Any]] = {}  # pin → fields of `schemas.DriftResponse`
        self.gone_pins: dict[str, int] = {}  # pins whose version was deleted
        self.compared_model: PublishedModel | None = None  # the newest model when `drifts` was computed
        self._clock = clock
        self._pin_names: list[str] = []  # at the last reading of the pins
        self._next_read_of_pins_at = 0.0

    def get_loaded(self, version: int | str | None) -> PublishedModel:
        """Return the model of a version or of a pin; None means the newest.

        Raises `NotLoadedError` if it is not in memory, and `UnknownPinError` for an unknown pin.
        """
        if isinstance(version, str):
            version = look_up_pin(version, self.pins)
        return self.cache.get_loaded(version)

    def compute_age_s(self) -> float | None:
        """Return the seconds since the model in use was found in the store; None if no model is in use."""
        return None if self.cache.current is None else self._clock() - self.cache.current_since

    def explain_not_ready(self) -> dict[str, str]:
        """Return the reasons why this sidecar should get no requests, by the kind of failure; {} if it is ready."""
        reasons: dict[str, str] = {}
        if self.cache.store_error:
            reasons["store"] = f"the store cannot be read: {self.cache.store_error}"
        age_s = self.compute_age_s()
        if age_s is None:
            reasons["no model"] = self.cache.explain_no_model()
            return reasons
        why_too_old = self._age.explain_too_old(age_s)
        if why_too_old:
            reasons["old model"] = why_too_old
        return reasons

    def list_unreadable(self) -> list[str]:
        """Return a sentence about each version that cannot be read, and each pin whose version is gone."""
        unreadable = dict(self.cache.loader.unreadable)  # a copy: another thread changes the original
        sentences = [f"version {version} cannot be read: {file.cause}" for version, file in unreadable.items()]
        for name, version in self.gone_pins.items():
            sentences.append(f"{name} pins version {version}, which is gone")
        return sentences

    def _refresh(self, models: Models) -> None:
        """Refresh the pins. If the newest model will soon be too old, find out whether it has learned every record.

        If it has, the model does not count as too old.
        `models` has the listing of the store that the cache has just made, so the store is not listed again.
        """
        newest = self.cache.current
        if newest is not None:
            self._refresh_pins(newest, models)
            # Returns at once unless the model will soon be too old.
            self._age.confirm_if_every_record_is_learned(newest, age_s=self._clock() - self.cache.current_since)

    def _refresh_pins(self, newest: PublishedModel, models: Models) -> None:
        """Read the pins if they may have changed, and refresh the drifts of the newest model from the pinned models."""
        pins = Pins(models.store, models.topic)
        names = pins.names()  # without reading files
        is_newest_compared = newest is self.compared_model
        # A pin may move without a change of the names, so the pins are also read again after some seconds.
        may_pins_have_changed = names != self._pin_names or self._clock() >= self._next_read_of_pins_at
        if is_newest_compared and not may_pins_have_changed:
            return
        earlier_pins = self.pins
        self.pins = pins.all() if names else {}  # reads a file for each pin
        self.cache.pinned = frozenset(self.pins.values())
        if self.pins != earlier_pins:
            self.compared_model = None  # the drifts are from the earlier pins, so they are computed again
        self._refresh_drifts(newest)
        # After an error in the lines above, the next poll tries them again.
        self._pin_names = names
        self._next_read_of_pins_at = self._clock() + _READ_PINS_EVERY_S

    def _refresh_drifts(self, newest: PublishedModel) -> None:
        """Compute the drifts again if the newest model or a pin has changed, or if a drift is missing."""
        is_newest_compared = newest is self.compared_model  # False after a pin has changed, too: it is None then
        lacks_drift = len(self.drifts) < len(self.pins)  # a pinned model that could not be read may be readable now
        if not is_newest_compared or lacks_drift:
            self.compared_model = None  # if an error follows, the next poll computes the drifts again
            self.drifts = self._compute_drifts(newest)
            self.compared_model = newest

    def _compute_drifts(self, newest: PublishedModel) -> dict[str, dict[str, Any]]:
        """Return how far the newest model has moved from each pinned model, by the pin's name.

        Pinned models that cannot be read or have other dimensions are left out.
        """
        drifts: dict[str, dict[str, Any]] = {}
        gone_pins: dict[str, int] = {}
        for name, version in self.pins.items():
            pinned = self.cache.get_if_readable(version)
            if pinned is None:
                if version not in self.cache.loader.unreadable:  # its file was deleted
                    gone_pins[name] = version
                continue
            if pinned.model.dimensions == newest.model.dimensions:
                drift = measure_drift(pinned.model, newest.model)
                drifts[name] = {"version": version, **drift._asdict(), "outdated": drift.why_outdated}
        if gone_pins and gone_pins != self.gone_pins:
            log.warning("pinned models are gone", pins=gone_pins)
        self.gone_pins = gone_pins
        return drifts
