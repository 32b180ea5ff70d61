"""Settings of `streampca dead-letters`."""

from typing import Self

from streampca.settings.base import Rule
from streampca.settings.kafka import KafkaSettings
from streampca.settings.topics import DeadLetterSettings, LogSettings


class DeadLettersSettings(DeadLetterSettings, KafkaSettings, LogSettings):
    """Settings of `streampca dead-letters`, which needs a dead-letter topic."""

    @property
    def dead_letters(self) -> str:
        """The dead-letter topic."""
        return self.dead_letter_topic or ""

    @classmethod
    def rules(cls) -> list[Rule[Self]]:
        """There is a dead-letter topic."""
        return [
            *super().rules(),
            Rule(
                ("dead_letter_topic",),
                lambda s: s.dead_letter_topic is None,
                "dead_letter_topic is required: set STREAMPCA_DEAD_LETTER_TOPIC or pass --dead-letter-topic",
            ),
        ]
