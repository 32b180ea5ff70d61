"""Files with a right digest and wrong contents: decoding raises, or what it returns can be used."""

import copy
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from streampca.errors import DamagedFileError, NewerFormatError, SettingsError
from streampca.fold import checkpoint, model_file, npz
from tests.fold.streams import bits, fold_config, learn, make_fold, vectors
from tests.fold.test_model_file import a_published, some_past_scores

CONFIGS = {
    "pending only": (fold_config(), 7),
    "learned": (fold_config(half_life_seconds=9.0), 250),
    "float32": (fold_config(dtype="float32"), 250),
    "standardised": (fold_config(standardize=True), 250),
}
VALUES = st.sampled_from(
    [None, True, "", "7", "NaN", -1, -2, 0, 1, 2**63, 2**64 - 1, 1.5, -0.5, 1e308, [], [1], {}, {"a": 1}, {"a": "1"}]
)
DTYPES = ["float64", "float32", "float16", ">f8", "int64", "complex128", "bool", "<U8", "S4", "datetime64[ns]"]


def example(name: str) -> bytes:
    config, n = CONFIGS[name]
    d, dtype = config.learning.dimensions, config.learning.dtype
    V, stamps = vectors(n, d, dtype=dtype), [10**12 + 7 * i for i in range(n)]
    return bits(make_fold(V, config, stamps), config)


CHECKPOINTS = {name: npz.decode(example(name), checkpoint.KIND, checkpoint.FORMAT_VERSION) for name in CONFIGS}
MODEL = npz.decode(
    model_file.encode(a_published(past_scores=some_past_scores())), model_file.KIND, model_file.FORMAT_VERSION
)


def mutated_header(draw: st.DrawFn, header: dict[str, Any]) -> None:
    """Change, remove or add one field, possibly in a nested object."""
    inner = header
    name = draw(st.sampled_from(sorted(header)))
    while isinstance(inner[name], dict) and inner[name] and draw(st.booleans()):
        inner = inner[name]
        name = draw(st.sampled_from(sorted(inner)))
    action = draw(st.sampled_from(["change", "change", "remove", "add"]))
    if action == "remove":
        del inner[name]
    else:
        inner[name if action == "change" else "other"] = copy.deepcopy(draw(VALUES))


def mutated_array(draw: st.DrawFn, arrays: dict[str, Any]) -> None:
    """Change one array's type, shape, order or one of its values; remove it; or add one."""
    name = draw(st.sampled_from(sorted(arrays)))
    array = np.atleast_1d(arrays[name])
    action = draw(st.sampled_from(["type", "shape", "order", "value", "remove", "add"]))
    if action == "type":
        arrays[name] = np.zeros(array.shape, draw(st.sampled_from(DTYPES)))
    elif action == "shape":
        arrays[name] = draw(st.sampled_from([array[:0], array[1:], array[None], array.ravel(), np.array(1.0), array.T]))
    elif action == "order":
        arrays[name] = np.asarray(array, order="F")
    elif action == "value" and array.size:
        arrays[name] = array = array.copy()
        if array.dtype.kind == "f":
            value = draw(st.sampled_from([np.nan, np.inf, -1.0, 0.0, 2.0, 1e-300, 1e300, 1e-8]))
            with np.errstate(over="ignore"):
                array.flat[draw(st.integers(0, array.size - 1))] = np.float64(value).astype(array.dtype)
    elif action == "remove":
        del arrays[name]
    else:
        arrays["other"] = array


REFUSED = DamagedFileError, NewerFormatError, SettingsError  # the last: written by an earlier release


@st.composite
def mutated(draw: st.DrawFn, file: tuple[dict[str, Any], dict[str, Any]]) -> bytes:
    header, arrays = copy.deepcopy(file[0]), dict(file[1])
    for _ in range(draw(st.integers(1, 2))):
        if draw(st.booleans()) and header:
            mutated_header(draw, header)
        elif arrays:
            mutated_array(draw, arrays)
    with np.errstate(all="ignore"):
        return npz.encode(header, arrays)


@pytest.mark.parametrize("name", CONFIGS)
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_mutated_checkpoint_is_damaged_or_can_be_learned_from(name: str, data: st.DataObject) -> None:
    config = CONFIGS[name][0]
    file = data.draw(mutated(CHECKPOINTS[name]))
    try:
        decoded = checkpoint.decode(file)
    except REFUSED:
        return
    if decoded.settings != config.as_dict():  # refused by name, by `Checkpoint.refuse_other_settings`
        return
    rows = vectors(300, config.learning.dimensions, dtype=config.learning.dtype)
    with np.errstate(all="ignore"):
        learn(decoded.fold, rows, [10**12] * len(rows), 10**6, config)
        decoded.fold.provisional(config.learning)


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_a_mutated_model_is_damaged_or_can_be_written_again(data: st.DataObject) -> None:
    try:
        decoded = model_file.decode(data.draw(mutated(MODEL)))
    except REFUSED:
        return
    assert model_file.decode(model_file.encode(decoded)).version == decoded.version
    assert isinstance(decoded.topic, str)
    assert all(isinstance(offset, int) for offset in decoded.positions.values())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("weight", "1.5"),
        ("count", 1.5),
        ("topic", 7),
        ("partition", "0"),
        ("next_offset", True),
        ("stats.learned", "7"),
    ],
)
def test_a_wrong_type_in_the_header_is_named(field: str, value: object) -> None:
    header, arrays = copy.deepcopy(CHECKPOINTS["learned"])
    (header["stats"] if "." in field else header)[field.split(".")[-1]] = value
    with pytest.raises(DamagedFileError, match=rf"^not a checkpoint file: {field} in its header is wrong"):
        checkpoint.decode(npz.encode(header, arrays))
