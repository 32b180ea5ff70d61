"""The model that transform projects with: the version of the settings, or the newest as long as its shape stays."""

from collections.abc import Callable, Mapping

import structlog

from streampca.consumer_group.committed import OutputShape, read_shape
from streampca.errors import InputError
from streampca.fold.model_file import PublishedModel
from streampca.fold.names import choose_common_names
from streampca.settings.field_paths import dimension_names
from streampca.stores.model_cache import ModelCache, NoModelError, UnknownVersionError
from streampca.stores.pins import UnknownPinError, look_up_pin

_NO_PAST_SCORES = "the newest model has no past scores yet, which p-values need; the next version will have them"
_HIGHEST_P = 1.0  # of any p-value
_START_OVER = "write to another output_topic with another transform_group_id"

log = structlog.get_logger()


class CurrentModel:
    """The model in use, from a cache that a thread keeps up to date."""

    def __init__(
        self,
        cache: ModelCache,
        version: int | str | None,
        output_topic: str,
        *,
        needs_past_scores: bool,
        p_below: float | None = None,
        field: str = "",
        pins: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        """`version` is a version or the name of a pin; None means the newest.

        With `needs_past_scores`, models without past scores are not used. Only records with a p-value below `p_below`
        get outputs (None: all records). `field` is the setting that says where a record holds its vector; it may list
        the names of the dimensions, as in "a,b,c", and then a model with other names is refused. `pins` reads the
        version of each pin; by default, there are no pins. `output_topic` is for errors.
        """
        self._cache = cache
        self._output_topic = output_topic
        self._pins = pins
        self._pin_name = version if isinstance(version, str) else ""  # "" without a pin
        # The version that the setting `model_version` means; None for the newest, or until a pin is looked up.
        self.fixed_version = version if isinstance(version, int) else None
        self._needs_past_scores = needs_past_scores
        self._p_below = _HIGHEST_P if p_below is None else p_below
        self._field = field
        self._model: PublishedModel | None = None  # in use

    @property
    def published(self) -> PublishedModel:
        """The model of the last `refresh`. Raises `ValueError` before."""
        if self._model is None:
            raise ValueError("no model is in use yet")
        return self._model

    @property
    def shape(self) -> OutputShape:
        """The numbers of components and dimensions, and the version if the settings name it; committed with offsets."""
        return _find_shape(self.published)._replace(version=self.fixed_version)

    def refresh(self) -> str:
        """Use the version of the settings, or the newest model. Return why there is no model yet; "" if there is one.

        Raises `InputError` or `SettingsError` if the model does not fit the outputs or the settings.
        """
        has_loaded_fixed_version = self._model is not None and self.fixed_version is not None
        if has_loaded_fixed_version:  # the settings name a version or a pin: its model stays, even if the pin moves
            return ""
        try:
            model = self._load()
        except NoModelError as error:
            return str(error)
        if self._needs_past_scores and model.past_scores is None:
            if self.fixed_version is not None:
                raise InputError(f"model version {self.fixed_version} has no past scores, which p-values need")
            has_older_model = self._model is not None
            return "" if has_older_model else _NO_PAST_SCORES  # "": the older model stays in use
        if model is not self._model:
            self._use(model)
        return ""

    def _load(self) -> PublishedModel:
        """Return the model of the version or the pin in the settings; without these, return the newest model.

        Raises `NoModelError`, and `InputError` if the version or the pin is unknown.
        """
        try:
            if self._pin_name and self.fixed_version is None:
                self.fixed_version = look_up_pin(self._pin_name, self._pins())  # from now on, even if the pin moves
            return self._cache.get(self.fixed_version)
        except (UnknownVersionError, UnknownPinError) as error:
            raise InputError(str(error)) from None

    def _use(self, model: PublishedModel) -> None:
        """Use a model from now on. Raises if it does not fit the outputs or the settings."""
        if self._model is not None:
            self._refuse_other_shape(model, _find_shape(self._model))
        names = dimension_names(self._field, model.model.dimensions)
        choose_common_names(names, model.names, "`field`", f"model version {model.version}")  # raises if they differ
        if self._model is None:
            self._warn_if_no_p_value_can_be_below_limit(model)
        self._model = model  # only after all checks

    def _warn_if_no_p_value_can_be_below_limit(self, model: PublishedModel) -> None:
        """Log a warning if even the least possible p-value is not below the limit `p_below`."""
        past = model.past_scores
        if self._needs_past_scores and past is not None and past.least_p >= self._p_below:
            log.warning("too few past scores", version=model.version, least_p=past.least_p, only_p_below=self._p_below)

    def check_metadata(self, metadata: str) -> None:
        """Raise `InputError` unless outputs of this model may follow those of an earlier process.

        `metadata` is what the earlier process committed with an offset: its model's numbers of components and
        dimensions, and the version if its setting `model_version` was set.
        """
        committed = read_shape(metadata)
        if committed is None:  # another tool has committed the offset
            return
        self._refuse_other_shape(self.published, committed)
        if committed.version is not None:  # `model_version` was set, so all outputs are of this version
            self._refuse_other_version(committed.version)

    def _refuse_other_version(self, earlier_version: int) -> None:
        """Raise `InputError` unless `fixed_version`, which the settings fix, is the version of the earlier outputs."""
        if earlier_version == self.fixed_version:
            return
        if self._pin_name:
            version_now = f"{self._pin_name} now means version {self.fixed_version}"
            remedy = f"`streampca pin {earlier_version} --as {self._pin_name}`"
        else:
            version_now = f"model_version is {'unset' if self.fixed_version is None else self.fixed_version}"
            remedy = f"set model_version={earlier_version}"
        raise InputError(
            f"{self._output_topic} holds outputs of model version {earlier_version}, but {version_now}, and each "
            f"version is another basis: {remedy}, or {_START_OVER}"
        )

    def _refuse_other_shape(self, model: PublishedModel, earlier_shape: OutputShape) -> None:
        """Raise `InputError` if a model has other numbers of components and dimensions than the earlier outputs."""
        shape = _find_shape(model)
        if shape.components_and_dimensions != earlier_shape.components_and_dimensions:
            raise InputError(
                f"{self._output_topic} holds outputs of {_describe(earlier_shape)}, but model version {model.version} "
                f"has {_describe(shape)}, and they must not be mixed: {_START_OVER}"
            )


def _find_shape(published: PublishedModel) -> OutputShape:
    return OutputShape(published.model.n_components, published.model.dimensions)


def _describe(shape: OutputShape) -> str:
    return f"{shape.components} components of {shape.dimensions} dimensions"
