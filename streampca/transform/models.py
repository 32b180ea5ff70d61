"""The model that records are projected with: one version, or always the newest of a shape that never changes."""

import re

from streampca.errors import InputError
from streampca.fold.model_file import PublishedModel
from streampca.fold.names import agreed
from streampca.settings.field_paths import dimension_names
from streampca.stores.model_cache import ModelCache, NoModelError, UnknownVersionError

_NO_PAST_SCORES = "the newest model has no past scores yet, which p-values need; the next version will have them"
_SHAPE = re.compile(r"k=([0-9]+) d=([0-9]+)")


class CurrentModel:
    """The model in use, from a cache that somebody polls."""

    def __init__(
        self, cache: ModelCache, version: int | None, output: str, *, needs_past_scores: bool, field: str = ""
    ) -> None:
        """`output` is the topic that the outputs are written to, for errors; `field` may name the dimensions."""
        self._cache, self._version, self._output = cache, version, output
        self._needs_past_scores, self._field = needs_past_scores, field
        self._model: PublishedModel | None = None

    @property
    def published(self) -> PublishedModel:
        """The model of the last `refresh`. Raises `ValueError` before."""
        if self._model is None:
            raise ValueError("no model is in use yet")
        return self._model

    @property
    def shape(self) -> str:
        """Components and dimensions of the model, as committed with offsets."""
        return _shape(self.published)

    def refresh(self) -> str:
        """Use the newest model, or the one asked for; returns why there is none yet, or "".

        Raises `InputError` if the version cannot be used, or has another shape than the one before, and `SettingsError`
        if its dimensions have other names than those that `field` reads.
        """
        try:
            model = self._model if self._model and self._version is not None else self._cache.get(self._version)
        except NoModelError as error:
            return str(error)
        except UnknownVersionError:
            raise InputError(
                f"there is no model version {self._version}: never published, or removed; "
                "`streampca inspect STORE` lists the versions"
            ) from None
        if self._needs_past_scores and model.past_scores is None:
            if self._version is not None:
                raise InputError(f"model version {self._version} has no past scores, which p-values need")
            return "" if self._model else _NO_PAST_SCORES
        if self._model is not None:
            self._require(model, _shape(self._model))
        if model is not self._model:
            names = dimension_names(self._field, model.model.dimensions)
            agreed(names, model.names, "`field`", f"model version {model.version}")
        self._model = model  # not earlier: another thread projects with it
        return ""

    def require_shape(self, committed: str) -> None:
        """Raise `InputError` unless the model has the shape that was committed with offsets."""
        if written := shape_in(committed):
            self._require(self.published, written)

    def _require(self, model: PublishedModel, written: str) -> None:
        if _shape(model) != written:
            raise InputError(
                f"{self._output} holds outputs of {_in_words(written)}, but model version {model.version} has "
                f"{_in_words(_shape(model))}, and they must not be mixed: write to another output_topic with another "
                "transform_group_id"
            )


def shape_in(committed: str) -> str:
    """The shape of the outputs, in the metadata of a committed offset; "" without one."""
    shape = _SHAPE.search(committed)
    return shape.group() if shape else ""


def _shape(published: PublishedModel) -> str:
    return f"k={published.model.n_components} d={published.model.dimensions}"


def _in_words(shape: str) -> str:
    return _SHAPE.sub(r"\1 components of \2 dimensions", shape)
