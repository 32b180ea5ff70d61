"""Texts that hold numbers: a number, an array of numbers, or base64 of their bytes.

Cells of CSV, strings in records, and columns of files are read by the same rules.
"""

import base64
import re
from contextlib import suppress
from typing import Any

import orjson

from streampca.formats.errors import VectorError, sparse_error

MISSING = (
    "", "nan", "na", "n/a", "null", "none", "#n/a", "#na", "#n/a n/a", "<na>", "-nan", "1.#ind", "1.#qnan",
    "-1.#ind", "-1.#qnan",
)  # fmt: skip
"""The words that pandas reads as a missing number, in lower case."""
MISSING_HINT = "missing numbers are empty, NaN, NA, N/A, NULL, None or as pandas knows them"

# What Debezium writes instead of a large value that an update did not change, in all forms that it has for bytes.
_PLACEHOLDER = "__debezium_unavailable_value"
_ENCODED = _PLACEHOLDER.encode()
_UNAVAILABLE = (
    _PLACEHOLDER, [_PLACEHOLDER], _ENCODED, list(_ENCODED), base64.b64encode(_ENCODED).decode(), _ENCODED.hex(),
)  # fmt: skip
_NUMBER_BY_WORD = dict.fromkeys(MISSING, float("nan")) | {"true": 1.0, "false": 0.0}
_SPARSE = re.compile(r"\{[\d:.,eE+\s-]*\}/\d+")  # as pgvector's sparsevec writes 1:0.5 and 3:2 of 5 numbers
_FROM_URL_SAFE = str.maketrans("-_", "+/")
_MIN_LINE = 60  # letters: encoders wrap base64 into lines of 60 to 76


def parse_cell(cell: str) -> float | None:
    """Return the number in a text, NaN if it is missing, or None if the text holds something else."""
    word = cell.strip().lower()
    if word in _NUMBER_BY_WORD:
        return _NUMBER_BY_WORD[word]
    if "_" in word:  # such as 1_000, which `float` would read as a number
        return None
    try:
        return float(word)
    except ValueError:
        return None


def is_missing(cell: str) -> bool:
    """Return whether a cell is empty, or a word for a missing number."""
    return cell.strip().lower() in MISSING


def parse_value(cell: str) -> float | str | None:
    """Return the value of a cell: a number, None if the value is missing, or text."""
    if is_missing(cell):
        return None
    number = parse_cell(cell)
    return cell.strip() if number is None else number


def begins_as_array(value: Any) -> bool:
    """Return whether a value is a text that begins as an array does."""
    return isinstance(value, str) and value.lstrip().startswith(("[", "{"))


def is_debezium_placeholder(value: Any) -> bool:
    """Return whether a value is Debezium's placeholder, which is skipped as null is."""
    return value in _UNAVAILABLE


def may_be_debezium_placeholder(dimensions: int) -> bool:
    """Return whether an array of d whole numbers may be Debezium's placeholder, which is not a vector."""
    return dimensions == len(_ENCODED)


def decode_text(text: str) -> Any:
    """Return the array in a text such as [1, 2], or {1,2} as PostgreSQL writes it; decode any other text as base64.

    If a text is neither an array nor base64, or if it is a sparse vector, raises `VectorError`.
    """
    text = text.strip()
    if _SPARSE.fullmatch(text):  # such as {1:0.5,3:2}/5
        raise sparse_error()
    try:
        return _parse_array(text) if text.startswith(("[", "{")) else _decode_base64_floats(text)
    except ValueError:
        message = "expected an array of numbers, not a string: it is neither base64 of numbers nor the text of an array"
        raise VectorError("undecodable", message) from None


def _parse_array(text: str) -> Any:
    """Return the array in a text: JSON, [1 2] as NumPy prints it, or {1,2} as PostgreSQL writes it."""
    if text.startswith("["):
        with suppress(ValueError):
            return orjson.loads(text)
    brackets = text[:1] + text[-1:]
    if brackets not in ("[]", "{}"):
        raise ValueError("the array has no end")
    separator = "," if "," in text else None  # None stands for blanks
    entries = text[1:-1].split(separator)
    has_empty_entry = not all(entry.strip() for entry in entries)  # `parse_cell` would read it as a missing number
    numbers = [parse_cell(entry) for entry in entries]  # None for an entry that is not a number
    if has_empty_entry or None in numbers:
        raise ValueError("an entry is not a number")
    return numbers


def _decode_base64_floats(text: str) -> bytes:
    """Decode floats in base64, also URL-safe, without padding, or wrapped into lines. Raises `ValueError`."""
    lines = text.split()
    # A text such as `1 2 3` has only letters of base64, but its pieces are shorter than lines of wrapped base64.
    if any(len(line) < _MIN_LINE for line in lines[:-1]):
        raise ValueError("base64 has no blanks within its lines")
    letters = "".join(lines).translate(_FROM_URL_SAFE)
    padding = "=" * (-len(letters) % 4)
    data = base64.b64decode(letters + padding, validate=True)
    if len(data) % 4:
        raise ValueError("floats have 4 or 8 bytes")
    return data
