"""Names of dimensions, as messages list them."""

from streampca.errors import listed
from streampca.fold.names import agreed, difference


def test_short_lists_are_whole_and_of_long_ones_the_part_that_differs_is_shown() -> None:
    many = [f"sensor{i}" for i in range(1000)]
    assert listed(["a", "b"]) == "a, b"
    assert listed(many[:20]) == ", ".join(many[:20])
    assert difference(many, [*many[:500], "other", *many[501:]]) == (
        f"…, {', '.join(many[500:520])}, …",
        f"…, other, {', '.join(many[501:520])}, …",
    )
    assert difference(many, many[:999]) == (f"{', '.join(many[:20])}, …",) * 2
    assert len(listed(["x" * 255] * 20)) < 2000


def test_vectors_without_names_fit_any() -> None:
    names = ["a", "b"]
    assert agreed(names, names, "one", "two") == agreed(names, None, "one", "two") == names
    assert agreed(None, names, "one", "two") == names
    assert agreed(None, None, "one", "two") is None
