"""Decides which settings may have changed since a checkpoint was made, without learning its records again."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from streampca.pca.learning_config import LARGEST_COVARIANCE

# Learning can continue if one of these changes: what was learned keeps its meaning. `start` follows from `components`.
_ADOPTABLE_SETTINGS = (
    "components", "start", "oversampling", "half_life_messages", "half_life_seconds", "where", "missing_values",
    "field",
)  # fmt: skip
# Why learning cannot continue if one of these changes.
_REFUSALS = {
    "dimensions": "vectors of another length have other axes",
    "names": "each number was learned as the dimension of its name",
    "standardize": "variances were learned in other units",
    "center": "variances were learned about another point",
    "dtype": "what was learned was rounded to the former type",
}
_DEFAULT_REFUSAL = "the same records would be learned as other vectors"  # such as for another `format`


class Change(NamedTuple):
    """A setting of a worker that differs from the setting with which a checkpoint was made."""

    setting: str
    then: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.setting}={self.then} (now {self.now})"


def explain_refusal(changes: Sequence[Change], *, knows_all_axes: bool) -> str:
    """Return why learning cannot continue with these changes, or "" if it can.

    `knows_all_axes` says whether further components can be computed from a covariance that was learned.
    """
    reasons = []
    for change in changes:
        needs_more_axes = change.setting == "components" and change.now > change.then
        if change.setting not in _ADOPTABLE_SETTINGS:
            reasons.append(f"{change}: {_REFUSALS.get(change.setting, _DEFAULT_REFUSAL)}")
        elif needs_more_axes and not knows_all_axes:
            reasons.append(f"{change}: beyond {LARGEST_COVARIANCE} dimensions, no more components were learned")
    return "; ".join(reasons)
