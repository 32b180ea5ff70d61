"""Settings of vectors with gaps."""

from typing import Literal, Self

from pydantic import Field

from streampca import help_texts
from streampca.settings.base import Rule, Settings


class GapSettings(Settings):
    """Whether vectors may have gaps."""

    missing: Literal["refuse", "impute"] = Field("refuse", description=help_texts.MISSING)
    min_observed: int | None = Field(
        None,
        ge=1,
        description="Fewest entries that a vector needs with missing=impute; unset: as many as components.",
    )

    @classmethod
    def rules(cls) -> list[Rule[Self]]:
        """Without gaps there is no limit to their number."""
        return [
            *super().rules(),
            Rule(
                ("min_observed", "missing"),
                lambda s: s.min_observed is not None and s.missing == "refuse",
                "min_observed has no effect without missing=impute",
            ),
        ]
