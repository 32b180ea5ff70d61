"""Whether raw numbers can be what their producer meant.

The bytes of a number of another type are a number too. But if bytes are read in the wrong byte order, or integers as
floats, almost all numbers lie near the smallest that a float can hold, or they span many decades. Measured numbers do
neither. Zeros, infinities and NaN say nothing.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampca.pca.arrays import Array

_MAX_DECADES = 20
_MIN_NUMBERS = 20  # that a dimension must have: the spread of fewer says nothing
_TINY = 2.0**16  # times the smallest normal number: big-endian prices, read as little-endian, are just below
_MAX_DIMENSIONS = 4096  # that are looked at


def sample(row: Array) -> Array:
    """At most 4,096 numbers of a vector (d,), in runs of eight at equal distances.

    The bytes of eight numbers are also whole numbers of any other type, as which they may be read.
    """
    if len(row) <= _MAX_DIMENSIONS:
        return row
    runs = row[: len(row) - len(row) % 8].reshape(-1, 8)
    step = -(-len(runs) * 8 // _MAX_DIMENSIONS)  # rounded up
    return runs[::step].ravel()


def explanation_of(rows: Array, *, raw: bool, dimensions: int) -> str:
    """What is odd about vectors of floats (n, d), or samples of vectors, and what to do about it; "" if nothing is odd.

    `dimensions` is the number of entries of whole vectors. With `raw` the record is the bytes of the numbers, which may
    have another type. In all other formats, such as bytes in Avro, floats must be little-endian.
    """
    found = oddity(rows)
    if not found:
        return ""
    found = f"read as {rows.dtype.name}, {found}"
    if raw:
        formats = ", ".join(alternatives(rows, dimensions))
        return (
            f"{found}; the same bytes are plausible as {formats}: correct format, or skip this test with "
            f"format={rows.dtype.str} if the numbers are right"
        )
    is_odd_in_other_order = oddity(rows.view(rows.dtype.newbyteorder(">")))
    order = "" if is_odd_in_other_order else " (in the other byte order they are plausible)"
    return f"{found}{order}; the producer must write little-endian floats, or arrays of numbers instead of bytes"


@np.errstate(invalid="ignore")  # signalling NaNs would warn
def oddity(rows: Array) -> str:
    """What is odd about vectors (n, d) of floats, in their type on the wire; "" if nothing is odd."""
    rows = rows[:, :: -(-rows.shape[1] // _MAX_DIMENSIONS)]
    sizes = np.abs(rows.astype(np.float64))
    sizes[~np.isfinite(sizes) | (sizes == 0)] = np.inf  # these say nothing, and come last in order
    counts = np.isfinite(sizes).sum(axis=0)
    tiny = np.finfo(rows.dtype).tiny * (_TINY if rows.dtype.itemsize > 2 else 1.0)  # float16 has no room for more
    if counts.any() and not (np.isfinite(sizes) & (sizes >= tiny)).any():
        return f"all numbers but zero are below {tiny:.0e}"
    has_enough = counts >= _MIN_NUMBERS
    last = counts[has_enough] - 1
    percentiles = np.stack([-(-last // 10), last * 9 // 10])  # where the 10th and the 90th are
    ordered = np.sort(sizes[:, has_enough], axis=0)
    low, high = np.log10(np.take_along_axis(ordered, percentiles, axis=0))
    decades = (high - low).max(initial=0.0)
    if decades > _MAX_DECADES:
        return f"the middle 80 % of the numbers of a dimension span {decades:.0f} decades"
    return ""


def alternatives(rows: Array, dimensions: int) -> list[str]:
    """The formats in which the bytes of vectors (n, d), or of samples of vectors, are plausible numbers.

    Integers come last, since any bytes are plausible as integers. `dimensions` is the number of entries of whole
    vectors.
    """
    nbytes = rows.dtype.itemsize * dimensions
    widths = [width for width in (rows.dtype.itemsize, 8, 4, 2, 1) if nbytes % width == 0]
    floats = [rows.view(f"{order}f{width}") for width in widths if width > 1 for order in "<>"]
    floats = [read for read in floats if read.dtype != rows.dtype and np.isfinite(read).all() and not oddity(read)]
    signed = [_in_likely_order(rows, width) for width in widths]
    unsigned = [read.view(read.dtype.str.replace("i", "u")) for read in signed]
    entries_of = dict[str, int]()  # of a whole vector, by the name of the format
    for read in (*floats, *signed, *unsigned):
        is_big_endian = read.dtype.str[0] == ">"
        name = read.dtype.str if is_big_endian else read.dtype.name
        entries_of[name] = nbytes // read.dtype.itemsize
    return [name if d == dimensions else f"{name} (dimensions={d})" for name, d in entries_of.items()]


def _in_likely_order(rows: Array, width: int) -> NDArray[np.signedinteger[Any]]:
    """The bytes of vectors as integers of `width` bytes, in the byte order in which their median size is smaller."""
    in_orders = [rows.view(f"{order}i{width}") for order in "<>"]
    return min(in_orders, key=lambda read: np.median(np.abs(read.astype(np.float64))))
