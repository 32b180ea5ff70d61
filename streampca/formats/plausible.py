"""Whether raw numbers can be what their producer meant: the bytes of any other type are numbers too, but odd ones.

Read in the other byte order, or as floats although they are integers, numbers lie at the edge of what a float holds, or
all over it. Numbers that anybody measures do neither. Zeros, infinities and NaN say nothing.
"""

import numpy as np

from streampca.pca.arrays import Array

_MAX_DECADES = 20
_MIN_NUMBERS = 20  # of a dimension, to speak of its spread
_TINY = 2.0**16  # times the smallest normal number: big-endian prices, read as little-endian, are just below
_MAX_DIMENSIONS = 4096  # to look at


def sample(row: Array) -> Array:
    """At most 4,096 numbers of a vector (d,): every so many-th eight, whose bytes are whole numbers of any type."""
    if len(row) <= _MAX_DIMENSIONS:
        return row
    eights = row[: len(row) - len(row) % 8].reshape(-1, 8)
    every = -(-len(eights) * 8 // _MAX_DIMENSIONS)
    return eights[::every].ravel()


def explained(rows: Array, *, raw: bool, dimensions: int) -> str:
    """What is odd about vectors of floats (n, d), or samples of them, and the remedy; "" if nothing is.

    If they are not `raw`, they lie in bytes of a record, whose floats are little-endian in any format.
    """
    if not (found := oddity(rows)):
        return ""
    found = f"read as {rows.dtype.name}, {found}"
    if raw:
        formats = ", ".join(alternatives(rows, dimensions))
        return (
            f"{found}; the same bytes are plausible as {formats}: correct format, or skip this test with "
            f"format={rows.dtype.str} if the numbers are right"
        )
    order = "" if oddity(rows.view(rows.dtype.newbyteorder(">"))) else " (in the other byte order they are plausible)"
    return f"{found}{order}; the producer must write little-endian floats, or arrays of numbers instead of bytes"


@np.errstate(invalid="ignore")  # signalling NaNs would warn
def oddity(rows: Array) -> str:
    """What is odd about vectors (n, d) of floats, in their type on the wire; "" if nothing is."""
    rows = rows[:, :: -(-rows.shape[1] // _MAX_DIMENSIONS)]
    sizes = np.abs(rows.astype(np.float64))
    sizes[~np.isfinite(sizes) | (sizes == 0)] = np.inf
    counts = np.isfinite(sizes).sum(axis=0)
    tiny = np.finfo(rows.dtype).tiny * (_TINY if rows.dtype.itemsize > 2 else 1.0)  # float16 has no room for more
    if counts.any() and not (np.isfinite(sizes) & (sizes >= tiny)).any():
        return f"all numbers but zero are below {tiny:.0e}"
    last = counts[counts >= _MIN_NUMBERS] - 1
    percentiles = np.stack([-(-last // 10), last * 9 // 10])  # the 10th and the 90th
    low, high = np.log10(np.take_along_axis(np.sort(sizes[:, counts >= _MIN_NUMBERS], axis=0), percentiles, axis=0))
    if (decades := (high - low).max(initial=0.0)) > _MAX_DECADES:
        return f"the middle 80 % of the numbers of a dimension span {decades:.0f} decades"
    return ""


def alternatives(rows: Array, dimensions: int) -> list[str]:
    """The formats in which the bytes of vectors (n, d) are no odd numbers; the integers last, all of which can be.

    The vectors are samples of those that have so many `dimensions`, if these are more than d.
    """
    nbytes = rows.dtype.itemsize * dimensions
    widths = [width for width in (rows.dtype.itemsize, 8, 4, 2, 1) if nbytes % width == 0]
    floats = [rows.view(f"{order}f{width}") for width in widths if width > 1 for order in "<>"]
    floats = [read for read in floats if read.dtype != rows.dtype and np.isfinite(read).all() and not oddity(read)]
    # The median size is less in the byte order in which integers were written.
    signed = [
        min(
            (rows.view(f"{order}i{width}") for order in "<>"),
            key=lambda read: np.median(np.abs(read.astype(np.float64))),
        )
        for width in widths
    ]
    unsigned = [read.view(read.dtype.str.replace("i", "u")) for read in signed]
    names = {
        read.dtype.str if read.dtype.str[0] == ">" else read.dtype.name: nbytes // read.dtype.itemsize
        for read in (*floats, *signed, *unsigned)
    }
    return [name if d == dimensions else f"{name} (dimensions={d})" for name, d in names.items()]
