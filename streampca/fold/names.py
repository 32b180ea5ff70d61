"""Names of the dimensions: the folds of a stream, its models and the settings must agree on them."""

from streampca.errors import SettingsError, list_names

Names = list[str] | None  # a name for each dimension; None: the dimensions have no names


def choose_common_names(names: Names, other_names: Names, named_by: str, other_named_by: str) -> Names:
    """Return the names of the dimensions in two parts of a stream; if only one part has names, its names.

    Raises `SettingsError` if both have names that differ. The error says that the one names come from `named_by`, the
    others from `other_named_by`.
    """
    different_names = describe_difference(names, other_names)
    if different_names:
        names_text, other_text = different_names
        raise SettingsError(
            f"the dimensions are named {names_text} by {named_by}, but {other_text} by {other_named_by}: names and "
            "order must be the same"
        )
    return other_names if names is None else names


def describe_difference(names: Names, other_names: Names) -> tuple[str, str] | None:
    """Return both lists as texts if they differ; None if they are equal, or if one is None.

    The text of a long list begins with the first name that differs. If one list only continues the other, both texts
    begin with the first name.
    """
    if names is None or other_names is None or names == other_names:
        return None
    first_different = 0
    for index, (name, other_name) in enumerate(zip(names, other_names, strict=False)):
        if name != other_name:
            first_different = index
            break
    return list_names(names, first_different), list_names(other_names, first_different)
