"""Names of the dimensions. The folds of a stream, its models and the settings must have the same ones."""

from streampca.errors import SettingsError, listed

Names = list[str] | None  # one for each dimension; None: they have none


def agreed(names: Names, others: Names, named_by: str, others_named_by: str) -> Names:
    """Return the names in both lists, or in one of them if the other is None.

    If both have names that differ, raises `SettingsError` with both lists. `named_by` and `others_named_by` say in its
    message whose names they are.
    """
    lists = difference(names, others)
    if lists:
        raise SettingsError(
            f"the dimensions are named {lists[0]} by {named_by}, but {lists[1]} by {others_named_by}: names and "
            "order must be the same"
        )
    return others if names is None else names


def difference(names: Names, others: Names) -> tuple[str, str] | None:
    """Return both lists as texts if they differ, otherwise None. A list of None does not differ from any list.

    Long lists begin with the first name that differs.
    """
    if names is None or others is None or names == others:
        return None
    pairs = enumerate(zip(names, others, strict=False))
    first_different = next((index for index, (name, other) in pairs if name != other), 0)
    return listed(names, first_different), listed(others, first_different)
