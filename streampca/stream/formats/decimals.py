"""From decimal to float64, rightly rounded or not at all: compiled, and without Python's lock held.

A number is w·10^q with w < 2^64 exact, and moved up until w ≥ 2^63. A power of ten is kept as 128 bits: 10^q = t·2^e
with T ≤ t < T + 1 and 2^127 ≤ T < 2^128. So the product w·t is less than 2^64 above w·T: of its 192 bits, the upper 128
are known but for the last. 53 of them are the number's, behind one that may be 0, and the rest say how to round, unless
they lie so near to one half that what is not known decides. Those numbers (one in 2^70, and halves such as
4503599627370496.5), and what is too large or too small to be a normal float64, are left to others. For 10^0 to 10^27
nothing is unknown: T = t, and its lower half is 0.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

Word = np.uint64  # of everything here: with any other integer numba would make a float64 of it

DOUBT = np.uint64(2**64 - 1)
"""In a number's place: what its bits are is not known here."""

part_of_compiled = njit(nogil=True, forceinline=True)
"""For what only compiled functions call: it becomes a part of them, and of what is kept of them."""

_EXACT = 27  # powers of ten
_LEAST, _LARGEST = -330, 308  # of the powers of ten that, with such a w, give normal float64s
_ZERO, _ONE = np.uint64(0), np.uint64(1)
_UPPER_BIT = np.uint64(63)
_FRACTION = np.uint64(52)  # bits of a float64 below its exponent
_SPARE = np.uint64(10)  # of 63 bits that are known, those that are not the number's
_WORD, _PAIR = ir.IntType(64), ir.IntType(128)


def _power(q: int) -> tuple[int, int]:
    """T and e of 10^q."""
    n = 10 ** abs(q)
    if q < 0:
        e = -(127 + n.bit_length())
        return (1 << -e) // n, e
    e = n.bit_length() - 128
    return (n >> e if e > 0 else n << -e), e


_POWERS = [_power(q) for q in range(_LEAST, _LARGEST + 1)]
_UPPER: NDArray[np.uint64] = np.array([T >> 64 for T, _ in _POWERS], np.uint64)
_LOWER: NDArray[np.uint64] = np.array([T & (2**64 - 1) for T, _ in _POWERS], np.uint64)
_EXPONENTS: NDArray[np.int64] = np.array([e for _, e in _POWERS], np.int64)


@intrinsic  # type: ignore[untyped-decorator]  # numba has no types
def upper_product(typing: Any, a: Any, b: Any) -> Any:
    """The upper 64 bits of a·b."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        product = builder.mul(builder.zext(args[0], _PAIR), builder.zext(args[1], _PAIR))
        return builder.trunc(builder.lshr(product, ir.Constant(_PAIR, 64)), _WORD)

    return types.uint64(types.uint64, types.uint64), emit


@intrinsic  # type: ignore[untyped-decorator]
def zeros_above(typing: Any, word: Any) -> Any:
    """How many zeros a word that is not 0 begins with."""
    return types.uint64(types.uint64), lambda context, builder, signature, args: builder.ctlz(args[0], _not_zero())


@intrinsic  # type: ignore[untyped-decorator]
def zeros_below(typing: Any, word: Any) -> Any:
    """How many zeros a word that is not 0 ends with."""
    return types.uint64(types.uint64), lambda context, builder, signature, args: builder.cttz(args[0], _not_zero())


def _not_zero() -> Any:
    return ir.Constant(ir.IntType(1), 1)


@part_of_compiled  # type: ignore[untyped-decorator]
def rounded(w: Word, q: np.int64) -> Word:  # pragma: no cover - compiled
    """The bits of the float64 nearest to w·10^q, or `DOUBT`."""
    if w == _ZERO:
        return _ZERO
    if q < _LEAST or q > _LARGEST:
        return DOUBT
    place, shift = Word(q - _LEAST), zeros_above(w)
    w <<= shift
    lower = w * _UPPER[place]
    known = lower + upper_product(w, _LOWER[place])
    upper = upper_product(w, _UPPER[place]) + Word(known < lower)
    spare = _SPARE + (upper >> _UPPER_BIT)
    half = _ONE << (spare - _ONE)
    rest = upper & (half + half - _ONE)
    # Where not all is known, the product lies less than two units of `known` above what is.
    near_half = (rest == half and known == _ZERO) or (rest == half - _ONE and known >= DOUBT - _ONE)
    if near_half and not 0 <= q <= _EXACT:
        return DOUBT
    odd = (upper >> spare) & _ONE  # halves are rounded to even numbers
    up = Word(rest > half) | (Word(rest == half) & (Word(known > _ZERO) | odd))
    # What is added to the exponent's bits begins with a one; and with two zeros behind it when rounding carries over.
    exponent = np.int64(spare) - np.int64(shift) + _EXPONENTS[place] + 128 + 1074
    if exponent < 1 or exponent > 2044:
        return DOUBT
    bits: Word = (Word(exponent) << _FRACTION) + (upper >> spare) + up
    return bits
