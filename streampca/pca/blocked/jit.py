"""Decorators that compile functions with numba, and cache the machine code in a folder if there is one.

The classes below replace the cache of `njit(cache=True)`, which has four faults up to numba 0.68:

- It ignores a folder that is read-only.
- It raises if it cannot write.
- A function of another module may be inlined into cached code. If that function changes, the old code is still used.
- Processes that write at the same time overwrite each other's code: a float64 call then raises, or runs float32 code,
  at every start.

A folder for each version of the code would mend the third fault; nothing public mends the rest.
"""

import contextlib
import hashlib
import pickle
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

import scipy.linalg.cython_blas  # noqa: F401 - numba's BLAS: loaded here, so that limits on threads find it
from numba import njit
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, UserProvidedCacheLocator

Function = TypeVar("Function", bound=Callable[..., Any])

_REORDER_SUMS = {"reassoc", "contract", "nsz"}  # flags of LLVM
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "no_cfunc_wrapper": True, "no_rewrites": True}  # quick to compile


def compiled(function: Function, **options: Any) -> Function:
    """Compile a function at its first call, and cache its machine code.

    It keeps the GIL. Division by zero gives infinity or NaN.
    """
    dispatcher = njit(**_OPTIONS, **options)(function)
    with contextlib.suppress(RuntimeError):  # there is no folder to cache in
        dispatcher._cache = _Cache(function)
    return cast("Function", dispatcher)


def compiled_without_lock(function: Function) -> Function:
    """Compile and cache a function for long calls, which releases the GIL.

    The compiler may reorder sums.
    """
    return compiled(function, fastmath=_REORDER_SUMS, nogil=True)


def compiled_for_compiled_callers(function: Function) -> Function:
    """Compile a function that only compiled functions call. Without a wrapper for Python, this takes half the time."""
    return cast("Function", njit(**_OPTIONS, fastmath=_REORDER_SUMS, no_cpython_wrapper=True)(function))


class _NamedFolder(UserProvidedCacheLocator):  # type: ignore[misc]  # numba has no types
    """The folder that NUMBA_CACHE_DIR names, even if it is read-only."""

    def ensure_cache_path(self) -> None:  # raises if it cannot write
        with contextlib.suppress(OSError):
            super().ensure_cache_path()


class _Files(CompileResultCacheImpl):  # type: ignore[misc]
    _locator_classes = (_NamedFolder, *CompileResultCacheImpl._locator_classes)


class _FileBySignature(IndexDataCacheFile):  # type: ignore[misc]
    """A cache without an index: one file for each signature, named by a digest of all that its code depends on."""

    def load(self, key: Any) -> Any:
        return self._load_data(self._name(key))

    def save(self, key: Any, data: Any) -> None:
        self._save_data(self._name(key), data)

    def _name(self, key: Any) -> str:
        digest = hashlib.sha256(repr((self._version, self._source_stamp, key)).encode()).hexdigest()
        return str(self._data_name(int(digest[:16], 16)))


class _Cache(FunctionCache):  # type: ignore[misc]
    """A cache that is valid until a module in the folder of the function changes, or in the folder of this module."""

    _impl_class = _Files

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        folder_of_function = Path(function.__code__.co_filename).parent
        stamp = (_digest(folder_of_function), _digest(Path(__file__).parent))
        self._cache_file = _FileBySignature(self._cache_path, self._impl.filename_base, stamp)

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):  # there is no file, or it is cut short
            return super().load_overload(sig, target_context)
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(OSError):
            super().save_overload(sig, data)


@cache
def _digest(folder: Path) -> str:
    """Return the SHA-256 of the code of all modules in a folder."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))).hexdigest()
