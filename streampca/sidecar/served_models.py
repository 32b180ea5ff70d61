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
        max_age_s: float | None = None,  # None: no limit
    ) -> None:
        """`on_load` is called with each model that was read, in the thread that read it.

        If the newest model becomes older than `max_age_s`, the sidecar is not ready, unless workers report that the
        model has every record.
        """
        self.cache = ModelCache(models, clock, on_load, after_poll=self._refresh)
        self._age = ModelAge(ProcessStatuses(models.store, models.topic), clock, max_age_s or math.inf)
        self.pins: dict[str, int] = {}  # name → version
        self.drifts: dict[str, dict[str, Any]] = {}  # name of the pin → the fields of `schemas.DriftResponse`
        self.gone_pins: dict[str, int] = {}  # those of `pins` whose version was deleted
        # The newest model when `drifts` was computed; None before, and while it is computed.
        self.compared_model: PublishedModel | None = None
        self._clock = clock
        self._pin_names: list[str] = []  # in the listing of the store when the pins were last read
        self._next_read_of_pins_at = 0.0  # when the pins are read again even if their names are the same

    def get_loaded(self, version: int | str | None) -> PublishedModel:
        """Return the model of this version number, or of the version pinned by this name; None means the newest.

        Raises `NotLoadedError` if the model is not in memory, and `UnknownPinError` if no version has the name.
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
        """Return a sentence about each version that cannot be read, and about each pin whose version was deleted."""
        unreadable = dict(self.cache.loader.unreadable)  # copied, since a thread changes it
        sentences = [f"version {version} cannot be read: {file.cause}" for version, file in unreadable.items()]
        for name, version in self.gone_pins.items():
            sentences.append(f"{name} pins version {version}, which is gone")
        return sentences

    def _refresh(self, models: Models) -> None:
        """After a poll, refresh the pinned models and the age of the newest model.

        Questions to `models` read the listing that the poll has just fetched, and cause no request of their own.
        """
        newest = self.cache.current
        if newest is not None:
            self._refresh_pins(newest, models)
            self._age.refresh(newest, age_s=self._clock() - self.cache.current_since)

    def _refresh_pins(self, newest: PublishedModel, models: Models) -> None:
        """If pins or the newest model may have changed, read the pins, and compute the drifts again if needed.

        A drift is how far the newest model has moved from a pinned model. `compared_model` is the newest model whose
        drifts are known.
        """
        pins = Pins(models.store, models.topic)
        names = pins.names()  # from the listing of the store, without reading a file for each pin
        if not self._must_read_pins(names, newest):
            return
        earlier_pins = self.pins
        self.pins = pins.all() if names else {}  # `all` reads a file for each pin
        self.cache.pinned = frozenset(self.pins.values())  # the cache keeps these versions in memory
        if self._must_compute_drifts(earlier_pins, newest):
            self.compared_model = None  # if reading a pinned model raises, the next poll computes the drifts again
            self.drifts = self._compute_drifts(newest)
            self.compared_model = newest
        self._pin_names = names
        # The version of a pin may change without a change of the listing, so read the pins again after some seconds.
        self._next_read_of_pins_at = self._clock() + _READ_PINS_EVERY_S

    def _must_read_pins(self, names: list[str], newest: PublishedModel) -> bool:
        """Return whether the pins must be read again. A pin is a name that users give to a version of the model.

        `names` are those in the listing of the store, which does not show the version of a pin. So the pins are read
        also if their names have not changed: for each newer model, and every few seconds.
        """
        if names != self._pin_names:
            return True
        # `compared_model` is the newest model at the last reading of the pins; None if the store failed then.
        is_newer_model = newest is not self.compared_model
        return len(names) > 0 and (is_newer_model or self._clock() >= self._next_read_of_pins_at)

    def _must_compute_drifts(self, earlier_pins: dict[str, int], newest: PublishedModel) -> bool:
        """Return whether the drifts must be computed again, after the pins were read."""
        is_newer_model = newest is not self.compared_model
        lacks_drift = len(self.drifts) < len(self.pins)  # a pinned model that could not be read may be readable now
        return is_newer_model or self.pins != earlier_pins or lacks_drift

    def _compute_drifts(self, newest: PublishedModel) -> dict[str, dict[str, Any]]:
        """Return how far the newest model has moved from each pinned model, by the pin's name.

        Pinned models that cannot be read, or that have another number of dimensions, are left out. Pins whose version
        was deleted are logged once.
        """
        drifts: dict[str, dict[str, Any]] = {}
        gone: dict[str, int] = {}
        for name, version in self.pins.items():
            pinned = self.cache.get_if_readable(version)  # None if the file cannot be read, or was deleted
            # `unreadable` has the versions whose files are there, but cannot be read.
            is_deleted = pinned is None and version not in self.cache.loader.unreadable
            if is_deleted:
                gone[name] = version
            if pinned is not None and pinned.model.dimensions == newest.model.dimensions:
                drift = measure_drift(pinned.model, newest.model)
                # `outdated`: why the pinned model no longer fits the stream; empty if it fits.
                drifts[name] = {"version": version, **drift._asdict(), "outdated": drift.causes}
        if gone and gone != self.gone_pins:
            log.warning("pinned models are gone", pins=gone)
        self.gone_pins = gone
        return drifts
