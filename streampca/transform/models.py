"""The model that transform projects with: one fixed version, or always the newest, as long as its shape stays."""

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
    """The model in use, from a cache that a thread keeps up to date."""

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
        """`version` is a version, the name of one of the `pins`, or None: always the newest. The pins are read once.

        Errors name `output`, the topic of the outputs. Only outputs with p-values below `p_below` are written, 1: all;
        None: p-values are not needed. The paths in `field` may name the dimensions.
        """
        self._cache = cache
        self._output = output
        self._pins = pins
        self._pin = version if isinstance(version, str) else ""
        self.version = version if isinstance(version, int) else None  # of a pin: after the first `refresh`
        self._p_below = p_below
        self._field = field
        self._model: PublishedModel | None = None

    @property
    def published(self) -> PublishedModel:
        """The model of the last `refresh`. Raises `ValueError` before."""
        if self._model is None:
            raise ValueError("no model is in use yet")
        return self._model

    @property
    def shape(self) -> OutputShape:
        """Components and dimensions of the model, and the version if it is fixed; they are committed with offsets."""
        return _shape(self.published)._replace(version=self.version)

    def refresh(self) -> str:
        """Use the fixed version or the newest model, and return ""; if there is none yet, return why.

        Raises `InputError` if the version cannot be used, or has another shape than the earlier one, and
        `SettingsError` if its dimensions have other names than those that `field` reads.
        """
        try:
            if self._pin and self.version is None:
                self.version = pinned_version(self._pin, self._pins())
            is_fixed = self.version is not None
            model = self._model if self._model and is_fixed else self._cache.get(self.version)
        except NoModelError as error:
            return str(error)
        except (UnknownVersionError, UnknownPinError) as error:
            raise InputError(str(error)) from None
        if self._p_below is not None and model.past_scores is None:
            if self.version is not None:
                raise InputError(f"model version {self.version} has no past scores, which p-values need")
            return "" if self._model else _NO_PAST_SCORES  # an earlier model stays in use
        if self._model is not None:
            self._refuse_other_shape(model, _shape(self._model))
        if model is not self._model:
            names = dimension_names(self._field, model.model.dimensions)
            agreed(names, model.names, "`field`", f"model version {model.version}")
        if self._model is None:
            self._warn_if_no_p_can_be_below(model)
        self._model = model  # after all checks: `published` must never be a model that is refused
        return ""

    def _warn_if_no_p_can_be_below(self, model: PublishedModel) -> None:
        past = model.past_scores
        if self._p_below is not None and past is not None and past.least_p >= self._p_below:
            log.warning("too few past scores", version=model.version, least_p=past.least_p, only_p_below=self._p_below)

    def require_shape(self, committed: str) -> None:
        """Raise `InputError` unless the model has the shape and the version that were committed with offsets."""
        written = read_shape(committed)
        if written is None:  # another tool has committed
            return
        self._refuse_other_shape(self.published, written)
        fixed = written.version
        if fixed is not None and fixed != self.version:
            now = "unset" if self.version is None else str(self.version)
            if self._pin:
                setting = f"{self._pin} now means version"
                remedy = f"`streampca pin {fixed} --as {self._pin}`"
            else:
                setting = "model_version is"
                remedy = f"set model_version={fixed}"
            raise InputError(
                f"{self._output} holds outputs of model version {fixed}, but {setting} {now}, and each version is "
                f"another basis: {remedy}, or {_START_OVER}"
            )

    def _refuse_other_shape(self, model: PublishedModel, written: OutputShape) -> None:
        if _shape(model).size != written.size:
            raise InputError(
                f"{self._output} holds outputs of {_describe(written)}, but model version {model.version} has "
                f"{_describe(_shape(model))}, and they must not be mixed: {_START_OVER}"
            )


def _shape(published: PublishedModel) -> OutputShape:
    return OutputShape(published.model.n_components, published.model.dimensions)


def _describe(shape: OutputShape) -> str:
    return f"{shape.components} components of {shape.dimensions} dimensions"
