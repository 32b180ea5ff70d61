"""Checks errors that a user reads."""

from collections.abc import Callable

import pytest


def refusal(kind: type[Exception], action: Callable[[], object]) -> str:
    """The sentence of the error that an action raises; it is one line."""
    with pytest.raises(kind) as caught:
        action()
    text = str(caught.value)
    assert "\n" not in text
    return text
