"""Names of dimensions: what folds of one stream, models and settings must agree on."""

from streampca.errors import SettingsError, listed

Names = list[str] | None  # one for each dimension; None: they have none


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
