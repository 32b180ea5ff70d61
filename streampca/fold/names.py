"""Names of the dimensions. The folds of a stream, its models and the settings must have the same ones."""

from streampca.errors import SettingsError, listed

Names = list[str] | None  # one for each dimension; None: they have none


def agreed(names: Names, others: Names, named_by: str, others_named_by: str) -> Names:
    """Return the names that both have, or that one of them has. Raises `SettingsError` with both lists if they differ.

    `named_by` and `others_named_by` say in the message whose names they are.
    """
    lists = difference(names, others)
    if lists:
        raise SettingsError(
            f"the dimensions are named {lists[0]} by {named_by}, but {lists[1]} by {others_named_by}: names and "
            "order must be the same"
        )
    return others if names is None else names


def difference(names: Names, others: Names) -> tuple[str, str] | None:
    """Return both lists as texts if they differ, otherwise None. No names (None) fit all names.

    Long lists are shown from the first name that differs.
    """
    if names is None or others is None or names == others:
        return None
    pairs = enumerate(zip(names, others, strict=False))
    first_different = next((index for index, (name, other) in pairs if name != other), 0)
    return listed(names, first_different), listed(others, first_different)
