"""Replaces parts of production code by broken ones."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from streampca.stores.model_cache import ModelCache

Patch = Callable[[], AbstractContextManager[Any]]
Mutants = dict[str, tuple[int | Patch, ...]]  # name → the first seed that finds it, and its patches


def patched(owner: Any, **attributes: Any) -> Patch:
    """Other attributes of a class or module."""
    return lambda: mock.patch.multiple(owner, **attributes)


LOADS_OLDER_MODELS = patched(ModelCache, _candidates=lambda self, versions: list(reversed(versions)))
"""Makes a model cache load an older model when the file of a newer one is damaged."""


def nothing(*arguments: Any, **options: Any) -> None:
    """A method that does nothing."""
