"""Names of the dimensions: the folds of a stream, its models and the settings must agree on them."""

from streampca.errors import SettingsError, list_names

Names = list[str] | None  # a name for each dimension; None: the dimensions have no names


def agree_on_names(names: Names, others: Names, named_by: str, others_named_by: str) -> Names:
    """Return the names of two parts of a stream; if only one has names, they count for both.

    Raises `SettingsError` if they differ.
    """
    different = describe_difference(names, others)
    if different:
        names_text, others_text = different
        raise SettingsError(
            f"the dimensions are named {names_text} by {named_by}, but {others_text} by {others_named_by}: names and "
            "order must be the same"
        )
    return others if names is None else names


def describe_difference(names: Names, others: Names) -> tuple[str, str] | None:
    """Return both lists as texts if they differ; None if they are equal, or if one is None.

    The text of a long list begins with the first name that differs.
    """
    if names is None or others is None or names == others:
        return None
    first_different = 0
    for index, (name, other) in enumerate(zip(names, others, strict=False)):
        if name != other:
            first_different = index
            break
    return list_names(names, first_different), list_names(others, first_different)
