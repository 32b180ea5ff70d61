"""Names of dimensions: what folds of one stream, models and settings must agree on."""

from collections.abc import Sequence

from streampca.errors import SettingsError

Names = list[str] | None  # one for each dimension; None: they have none

_SHOWN, _LETTERS = 20, 60  # names in a message, and letters of each: of longer lists, from the first that differs on


def agreed(names: Names, others: Names, named_by: str, others_named_by: str) -> Names:
    """The names of both, or of the one that has any. Raises `SettingsError` with both lists if they differ."""
    if lists := difference(names, others):
        raise SettingsError(
            f"the dimensions are named {lists[0]} by {named_by}, but {lists[1]} by {others_named_by}: names and "
            "order must be the same"
        )
    return others if names is None else names


def difference(names: Names, others: Names) -> tuple[str, str] | None:
    """Both lists, as texts, if they differ; vectors without names fit any."""
    if names is None or others is None or names == others:
        return None
    same = next((i for i, (name, other) in enumerate(zip(names, others, strict=False)) if name != other), 0)
    return listed(names, same), listed(others, same)


def listed(names: Sequence[str], start: int = 0) -> str:
    """The names; of many, some from `start` on."""
    start = start if len(names) > _SHOWN else 0
    shown = [name[:_LETTERS] for name in names[start : start + _SHOWN]]
    return ("…, " if start else "") + ", ".join(shown) + (", …" if start + len(shown) < len(names) else "")
