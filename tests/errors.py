"""Checks errors that a user reads."""

from collections.abc import Callable
from typing import Any

import pytest


def refusal(kind: type[Exception], action: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """The sentence of the error that an action raises; it is one line."""
    with pytest.raises(kind) as caught:
        action(*arguments, **options)
    text = str(caught.value)
    assert "\n" not in text
    return text
