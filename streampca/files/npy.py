"""An .npy file as an array."""

from pathlib import Path

import numpy as np

from streampca.errors import InputError
from streampca.pca.arrays import Array


def mapped(path: Path) -> Array:
    """The array (n, d) of a file, mapped into memory. Raises `InputError`."""
    try:
        array = np.lib.format.open_memmap(path, mode="r")  # `np.load` opens archives, too, and advises to unpickle
    except ValueError as error:
        raise InputError(f"{path} is not an .npy array of numbers, as numpy.save writes it: {error}") from None
    if array.ndim != 2 or not array.shape[1] or array.dtype.kind not in "fiub":
        content = f"{array.dtype} of shape {array.shape}"
        raise InputError(f"{path} must hold real numbers of shape (rows, dimensions), not {content}")
    return array
