"""The settings of the guard against outliers."""

from typing import ClassVar, Literal

from pydantic import Field

from streampca.settings.base import Rule, Settings


class GuardSettings(Settings):
    """What is an outlier, and what to do with it."""

    on_outlier: Literal["learn", "skip", "dead_letter"] = Field(
        "learn", description="What to do with records that score higher than almost all others of their partition."
    )
    outlier_p: float = Field(
        0.001,
        gt=0,
        le=0.005,
        description="p-value up to which a record is an outlier.",
    )

    RULES: ClassVar[tuple[Rule, ...]] = (
        Rule(
            ("on_outlier", "dead_letter_topic"),
            lambda s: s.on_outlier == "dead_letter" and getattr(s, "dead_letter_topic", None) is None,
            "on_outlier=dead_letter needs dead_letter_topic",
        ),
    )
