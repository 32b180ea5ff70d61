"""Names of dimensions, as messages list them."""

from streampca.errors import list_names
from streampca.fold.names import choose_common_names, describe_difference


def test_short_lists_of_names_are_shown_whole_and_long_lists_from_the_first_difference_on() -> None:
    many = [f"sensor{i}" for i in range(1000)]
    assert list_names(["a", "b"]) == "a, b"
    assert list_names(many[:20]) == ", ".join(many[:20])
    assert describe_difference(many, [*many[:500], "other", *many[501:]]) == (
        f"…, {', '.join(many[500:520])}, …",
        f"…, other, {', '.join(many[501:520])}, …",
    )
    assert describe_difference(many, many[:999]) == (f"{', '.join(many[:20])}, …",) * 2
    assert len(list_names(["x" * 255] * 20)) < 2000


def test_vectors_without_names_take_the_names_of_the_rest() -> None:
    names = ["a", "b"]
    assert choose_common_names(names, names, "one", "two") == choose_common_names(names, None, "one", "two") == names
    assert choose_common_names(None, names, "one", "two") == names
    assert choose_common_names(None, None, "one", "two") is None
