"""The model that records are projected with: one version, or always the newest of a shape that never changes."""

from collections.abc import Callable, Mapping

import structlog

from streampca.consumer_group.committed import OutputShape, read_shape
from streampca.errors import InputError
from streampca.fold.model_file import PublishedModel
from streampca.fold.names import agreed
from streampca.settings.field_paths import dimension_names
from streampca.stores.model_cache import ModelCache, NoModelError, UnknownVersionError
from streampca.stores.pins import UnknownPinError, pinned_version

_NO_PAST_SCORES = "the newest model has no past scores yet, which p-values need; the next version will have them"
_START_OVER = "write to another output_topic with another transform_group_id"

log = structlog.get_logger()


class CurrentModel:
    """The model in use, from a cache that somebody polls."""

    def __init__(
        self,
        cache: ModelCache,
        version: int | str | None,
        output: str,
        *,
        p_below: float | None,
        field: str = "",
        pins: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """`output` is the topic that the outputs are written to, for errors; `field` may name the dimensions.

        Only outputs with p-values below `p_below` are written, 1: all; None: p-values are not needed. `version` may be
        the name of one of the `pins`, which are read once.
        """
        self._cache, self._output, self._pins = cache, output, pins
        self._name, self.version = (version, None) if isinstance(version, str) else ("", version)
        self._p_below, self._field = p_below, field
        self._model: PublishedModel | None = None

    @property
    def published(self) -> PublishedModel:
        """The model of the last `refresh`. Raises `ValueError` before."""
        if self._model is None:
            raise ValueError("no model is in use yet")
        return self._model

    @property
    def shape(self) -> OutputShape:
        """Components and dimensions of the model, and the version if it is fixed, as committed with offsets."""
        return _shape(self.published)._replace(version=self.version)

    def refresh(self) -> str:
        """Use the newest model, or the one asked for; returns why there is none yet, or "".

        Raises `InputError` if the version cannot be used, or has another shape than the one before, and `SettingsError`
        if its dimensions have other names than those that `field` reads.
        """
        try:
            if self._name and self.version is None:
                self.version = pinned_version(self._name, self._pins())
            model = self._model if self._model and self.version is not None else self._cache.get(self.version)
        except NoModelError as error:
            return str(error)
        except (UnknownVersionError, UnknownPinError) as error:
            raise InputError(str(error)) from None
        if self._p_below is not None and model.past_scores is None:
            if self.version is not None:
                raise InputError(f"model version {self.version} has no past scores, which p-values need")
            return "" if self._model else _NO_PAST_SCORES
        if self._model is not None:
            self._require(model, _shape(self._model))
        if model is not self._model:
            names = dimension_names(self._field, model.model.dimensions)
            agreed(names, model.names, "`field`", f"model version {model.version}")
        past, limit = model.past_scores, self._p_below
        if self._model is None and past is not None and limit is not None and past.least_p >= limit:
            log.warning("too few past scores", version=model.version, least_p=past.least_p, only_p_below=limit)
        self._model = model  # not earlier: another thread projects with it
        return ""

    def require_shape(self, committed: str) -> None:
        """Raise `InputError` unless the model has the shape and the version that were committed with offsets."""
        written = read_shape(committed)
        if written is None:  # by another tool
            return
        self._require(self.published, written)
        fixed = written.version
        if fixed is not None and fixed != self.version:
            means = f"{self._name} now means version" if self._name else "model_version is"
            back = f"`streampca pin {fixed} --as {self._name}`" if self._name else f"set model_version={fixed}"
            raise InputError(
                f"{self._output} holds outputs of model version {fixed}, but {means} "
                f"{'unset' if self.version is None else self.version}, and each version is another basis: {back}, or "
                f"{_START_OVER}"
            )

    def _require(self, model: PublishedModel, written: OutputShape) -> None:
        if _shape(model).size != written.size:
            raise InputError(
                f"{self._output} holds outputs of {_in_words(written)}, but model version {model.version} has "
                f"{_in_words(_shape(model))}, and they must not be mixed: {_START_OVER}"
            )


def _shape(published: PublishedModel) -> OutputShape:
    return OutputShape(published.model.n_components, published.model.dimensions)


def _in_words(shape: OutputShape) -> str:
    return f"{shape.components} components of {shape.dimensions} dimensions"
