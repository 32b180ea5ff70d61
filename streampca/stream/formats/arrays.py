"""Texts of JSON arrays of numbers, many at once and straight into float64: compiled, and without Python's lock held.

Only what certainly is such an array is taken. Whatever else a text may be, from one with an entry that is no number to
one with a number of twenty digits, is left to a parser of all of JSON, and it alone says what is wrong.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streampca.pca.compiled import compiled
from streampca.stream.formats.decimals import DOUBT, Word, part_of_compiled, rounded, zeros_below

Text = NDArray[np.uint8]

_AT_ONCE = 2**17  # numbers: a MiB
_BEHIND = bytes(8)  # what is read with the last character of all
_MOST_DIGITS = np.uint64(19)  # so many make less than 2^64

_OPEN, _CLOSE, _COMMA, _MINUS, _PLUS, _POINT, _NOUGHT, _SPACE, _TAB, _NEWLINE, _RETURN, _E = b"[],-+.0 \t\n\re"
_LOWER_CASE = 0x20
_ZERO, _ONE, _SEVEN, _EIGHT, _NINE, _SIXTEEN, _THIRTY_TWO, _SIGN = (np.uint64(n) for n in (0, 1, 7, 8, 9, 16, 32, 63))
_TENS: NDArray[np.uint64] = np.array([10**n for n in range(9)], np.uint64)
_NOUGHTS, _SIXES, _UPPER_HALVES = (np.uint64(byte * 0x0101010101010101) for byte in (0x30, 0x06, 0xF0))
_JOIN_2, _JOIN_4, _JOIN_8 = (np.uint64(1 + (10**n << 8 * n)) for n in (1, 2, 4))  # the next, and 10^n of this one
_EVERY_2, _EVERY_4 = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)


def read_arrays(texts: Sequence[bytes | memoryview], dimensions: int) -> list[memoryview | None]:
    """The d float64 numbers of each text that is an array of so many; None for the others."""
    rows: list[memoryview | None] = []
    many = max(1, _AT_ONCE // dimensions)
    for start in range(0, len(texts), many):
        part = texts[start : start + many]
        text = np.frombuffer(b"".join([*part, _BEHIND]), np.uint8)
        ends = np.cumsum([len(each) for each in part], dtype=np.uint64)
        bits, good = np.empty((len(part), dimensions), np.uint64), np.empty(len(part), np.bool_)
        _read(text, ends, bits, good)
        memory, size = bits.reshape(-1).view(np.uint8).data, bits.itemsize * dimensions
        rows += [memory[i * size : (i + 1) * size] if found else None for i, found in enumerate(good.tolist())]
    return rows


@compiled
def _read(
    text: Text, ends: NDArray[np.uint64], bits: NDArray[np.uint64], good: NDArray[np.bool_]
) -> None:  # pragma: no cover - compiled
    """Read texts that lie one behind the other and end there; `good`: which are arrays of as many as there is room."""
    start = _ZERO
    for i in range(len(ends)):
        good[i] = _array(text, start, ends[i], bits[i])
        start = ends[i]


@part_of_compiled  # type: ignore[untyped-decorator]  # numba has no types
def _array(text: Text, p: Word, end: Word, bits: NDArray[np.uint64]) -> bool:  # pragma: no cover - compiled
    """Whether it is an array of as many numbers as there is room for. All stops at its last bracket."""
    while end > p and _is_space(text[end - _ONE]):
        end -= _ONE
    if end == p or text[end - _ONE] != _CLOSE:
        return False
    p = _behind_space(text, p)
    if text[p] != _OPEN:
        return False
    last = len(bits) - 1
    for i in range(len(bits)):
        found, p = _number(text, _behind_space(text, p + _ONE))
        if found == DOUBT:
            return False
        bits[i] = found
        p = _behind_space(text, p)
        if text[p] != (_COMMA if i < last else _CLOSE):
            return False
    return p + _ONE == end  # type: ignore[no-any-return]


@part_of_compiled  # type: ignore[untyped-decorator]
def _number(text: Text, p: Word) -> tuple[Word, Word]:  # pragma: no cover - compiled
    """The bits of the number at p, or `DOUBT`, and the place behind it."""
    minus = Word(text[p] == _MINUS)
    first = p + minus
    w, p = Word(text[first] ^ _NOUGHT), first + _ONE
    if text[p] != _POINT:  # else one digit, as most numbers with a point have it
        w, p = _digits(text, first, _ZERO)
    elif w > _NINE:
        return DOUBT, p
    count = p - first
    if count == _ZERO or (count > _ONE and text[first] == _NOUGHT):
        return DOUBT, p
    q, whole = np.int64(0), True
    if text[p] == _POINT:
        point, whole = p, False
        w, p = _digits(text, point + _ONE, w)
        behind = p - point - _ONE
        if behind == _ZERO:
            return DOUBT, p
        q, count = -np.int64(behind), count + behind
    if count > _MOST_DIGITS and count > _MOST_DIGITS + _leading_noughts(text, first):
        return DOUBT, p
    if text[p] | _LOWER_CASE == _E:
        power, behind = _exponent(text, p + _ONE)
        if behind == _ZERO:
            return DOUBT, p
        q, p, whole = q + power, behind, False
    found = rounded(w, q)
    if found == DOUBT or (found == _ZERO and whole):  # -0 is an integer, and they have but one zero
        return found, p
    return found | minus << _SIGN, p


@part_of_compiled  # type: ignore[untyped-decorator]
def _digits(text: Text, p: Word, w: Word) -> tuple[Word, Word]:  # pragma: no cover - compiled
    """The number w with the digits from p on behind its own (modulo 2^64), and the place behind them.

    Eight at a time: what is not between 0 and 9 has one of its upper four bits set, or gets one when 6 is added.
    """
    while True:
        eight = _ZERO
        for i in range(8):  # which the machine does at once
            eight |= Word(text[p + Word(i)]) << (_EIGHT * Word(i))
        eight ^= _NOUGHTS
        others = (eight | (eight + _SIXES)) & _UPPER_HALVES
        if others != _ZERO:
            break
        w = w * _TENS[8] + _number_of(eight)
        p += _EIGHT
    count = zeros_below(others) // _EIGHT
    left = eight << (_EIGHT * (_SEVEN - count)) << _EIGHT  # with noughts before them
    return w * _TENS[count] + _number_of(left), p + count


@part_of_compiled  # type: ignore[untyped-decorator]
def _number_of(digits: Word) -> Word:  # pragma: no cover - compiled
    """The number of eight digits, a byte each, the first in the lowest: neighbours are joined three times."""
    twos = digits * _JOIN_2 >> _EIGHT & _EVERY_2
    fours = twos * _JOIN_4 >> _SIXTEEN & _EVERY_4
    return fours * _JOIN_8 >> _THIRTY_TWO


@part_of_compiled  # type: ignore[untyped-decorator]
def _exponent(text: Text, p: Word) -> tuple[np.int64, Word]:  # pragma: no cover - compiled
    """The power of ten at p, and the place behind it: 0 when there is none, or one with many digits."""
    negative = text[p] == _MINUS
    if negative or text[p] == _PLUS:
        p += _ONE
    power, behind = _digits(text, p, _ZERO)
    if behind == p or behind > p + _EIGHT:
        return np.int64(0), _ZERO
    return (-np.int64(power) if negative else np.int64(power)), behind


@part_of_compiled  # type: ignore[untyped-decorator]
def _leading_noughts(text: Text, p: Word) -> Word:  # pragma: no cover - compiled
    """How many of the digits from p on come before the first that counts."""
    count = _ZERO
    while text[p] == _NOUGHT or text[p] == _POINT:
        count += Word(text[p] == _NOUGHT)
        p += _ONE
    return count


@part_of_compiled  # type: ignore[untyped-decorator]
def _behind_space(text: Text, p: Word) -> Word:  # pragma: no cover - compiled
    while _is_space(text[p]):
        p += _ONE
    return p


@part_of_compiled  # type: ignore[untyped-decorator]
def _is_space(character: int) -> bool:  # pragma: no cover - compiled
    return character in (_SPACE, _NEWLINE, _RETURN, _TAB)
