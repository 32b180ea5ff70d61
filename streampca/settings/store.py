"""Settings of the log and of the store."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from streampca.settings import store_url
from streampca.settings.base import Rules, Settings
from streampca.settings.kafka import TopicSettings


class LogSettings(Settings):
    """Settings of the log."""

    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Lowest level that is logged.")


class StoreSettings(TopicSettings, LogSettings):
    """Settings shared by the worker and the sidecar."""

    store: Annotated[
        str,
        BeforeValidator(lambda location: str(location) if isinstance(location, Path) else location),
        AfterValidator(store_url.checked),
    ] = Field(
        "streampca-store",
        min_length=1,
        description="Folder of checkpoints and models, or a bucket: s3://, gs:// or az://bucket/prefix.",
    )

    RULES: ClassVar[Rules] = (
        (
            lambda s: store_url.scheme_of(s.store) is not None and not store_url.is_supported(),
            store_url.MISSING_PACKAGE,
        ),
    )  # fmt: skip
