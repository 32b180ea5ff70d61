"""Settings of the log, the topics and the store."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, field_validator

from streampca import help_texts, store_url
from streampca.settings.base import Rule, Settings

TOPIC_NAME = r"^[A-Za-z0-9._-]{1,249}$"  # what Kafka allows


class LogSettings(Settings):
    """Settings of the log."""

    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description=help_texts.LOG_LEVEL)
    log_format: Literal["auto", "json", "human"] = Field("auto", description=help_texts.LOG_FORMAT)


class TopicSettings(Settings):
    """The topic."""

    topic: str = Field(pattern=TOPIC_NAME, description=help_texts.TOPIC)

    @field_validator("topic")
    @classmethod
    def _is_no_folder(cls, topic: str) -> str:
        if topic in (".", ".."):
            raise ValueError("not a valid topic name")
        return topic


class DeadLetterSettings(TopicSettings):
    """The topic and its dead-letter topic."""

    dead_letter_topic: str | None = Field(None, pattern=TOPIC_NAME, description=help_texts.DEAD_LETTER_TOPIC)

    @classmethod
    def rules(cls) -> list[Rule[Self]]:
        """The two differ."""
        return [
            *super().rules(),
            Rule(
                ("dead_letter_topic", "topic"),
                lambda s: s.dead_letter_topic == s.topic,
                "dead_letter_topic must not be the topic itself",
            ),
        ]


class StoreSettings(TopicSettings, LogSettings):
    """Settings shared by the worker and the sidecar."""

    store: Annotated[
        str,
        BeforeValidator(lambda place: str(place) if isinstance(place, Path) else place),
        AfterValidator(store_url.checked),
    ] = Field("streampca-store", min_length=1, description=help_texts.STORE)

    @classmethod
    def rules(cls) -> list[Rule[Self]]:
        """A URL needs a package."""
        return [
            *super().rules(),
            Rule(
                ("store",),
                lambda s: store_url.scheme_of(s.store) is not None and not store_url.is_supported(),
                store_url.MISSING_PACKAGE,
            ),
        ]
