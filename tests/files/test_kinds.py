"""Files of every suffix are read, compressed or not; hostile ones are refused in bounded memory."""

import gzip
import io
import json
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from streampca.errors import InputError
from streampca.files import open_rows
from streampca.files.columns import FileOptions
from streampca.files.rows import KINDS, find_kind
from tests.errors import refusal

Y = np.random.default_rng(0).normal(size=(50, 3))
TABLE = pa.table({name: Y[:, i] for i, name in enumerate("abc")})
WRITERS: dict[str, Callable[[Path], object]] = {
    "npy": lambda path: path.write_bytes(npy()),
    "csv": lambda path: path.write_text("\n".join(",".join(map(repr, row)) for row in Y.tolist())),
    "jsonl": lambda path: path.write_text("\n".join(map(json.dumps, Y.tolist()))),
    "parquet": lambda path: pq.write_table(TABLE, path),
    "arrow": lambda path: feather.write_feather(TABLE, path, chunksize=20),
}


def npy() -> bytes:
    np.save(out := io.BytesIO(), Y)
    return out.getvalue()


@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
@pytest.mark.parametrize("suffix", list(KINDS))
def test_a_file_with_any_suffix_is_read(tmp_path: Path, suffix: str, compression: str) -> None:
    plain, path = tmp_path / "plain", tmp_path / f"V{suffix.upper()}{compression}"
    WRITERS[KINDS[suffix]](plain)
    path.write_bytes({"": bytes, ".gz": gzip.compress, ".zst": zstd}[compression](plain.read_bytes()))
    assert np.array_equal(np.concatenate([chunk.vectors for chunk in open_rows(path).chunks()]), Y)


@pytest.mark.parametrize("name", ["v.txt", "v.parquet.gzip", "v.npz", "v.gz", "v", ".csv", "v.csv.bz2", "csv"])
def test_other_suffixes_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"1,2\n")
    assert find_kind(name) is None
    with pytest.raises(InputError, match=r"none of those that can be read: \.npy, \.csv, .* \.gz or \.zst behind"):
        open_rows(tmp_path / name)


@pytest.mark.parametrize(
    ("compression", "content"),
    [
        *product(["", ".gz", ".zst"], ["noise", "nothing"]),
        *product([".gz", ".zst"], ["packed noise", "half a file"]),
    ],
)
@pytest.mark.parametrize("suffix", list(KINDS))
def test_noise_and_truncated_files_are_refused(tmp_path: Path, suffix: str, compression: str, content: str) -> None:
    pack = {"": bytes, ".gz": gzip.compress, ".zst": zstd}[compression]
    WRITERS[KINDS[suffix]](tmp_path / "plain")
    whole = pack((tmp_path / "plain").read_bytes())
    noise = bytes(range(256)) * 40
    data = {"noise": noise, "packed noise": pack(noise), "half a file": whole[: len(whole) // 2], "nothing": b""}
    (path := tmp_path / f"v{suffix}{compression}").write_bytes(data[content])
    with pytest.raises(InputError, match=r"v\.\w+") as caught:
        list(open_rows(path, FileOptions(impute=True)).chunks())
    assert str(caught.value).isprintable()
    assert "\\x" not in str(caught.value)
    assert "�" not in str(caught.value)


def arrow(new: Callable[..., Any]) -> bytes:
    """A file, or a stream, of ten batches."""
    out = io.BytesIO()
    with new(out, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=5)
    return out.getvalue()


@given(st.sampled_from([pa.ipc.new_file, pa.ipc.new_stream]), st.data())
def test_an_arrow_file_that_was_cut_or_joined_is_refused(new: Callable[..., Any], data: st.DataObject) -> None:
    """Never read as a shorter one: batches that come before the cut are whole."""
    whole = arrow(new)
    cuts = st.integers(1, len(whole) - 1) | st.just(len(whole) - 8)
    joined = [whole + b"x"] if new is pa.ipc.new_file else [whole + b"x", whole + whole]
    content = data.draw(cuts.map(lambda end: whole[:end]) | st.sampled_from(joined))
    with tempfile.TemporaryDirectory() as folder:
        (path := Path(folder) / "v.arrow").write_bytes(content)
        assert "v.arrow" in refusal(InputError, lambda: list(open_rows(path).chunks()))


BOMBS = {
    "v.csv": b"0" * 2**20, "v.tsv": b"1\t" * 2**19, "v.json": b"[0," * 2**18, "v.jsonl": b'{"a":' * 2**18,
    "v.csv.quoted": b'"\n",' * 2**18, "v.arrow": b"\x7f\x7f\x7f\x7f" * 2**18,
}  # fmt: skip
_READ = """
import resource, sys
from streampca.errors import InputError
from streampca.files import open_rows
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    for chunk in open_rows(sys.argv[1]).chunks():
        pass
except InputError as error:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, error)
"""


@pytest.mark.parametrize("name", list(BOMBS))
def test_a_decompression_bomb_is_refused_in_bounded_memory(tmp_path: Path, name: str) -> None:
    """A gibibyte without the end of a row."""
    path = tmp_path / f"{name.removesuffix('.quoted')}.gz"
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    first = packer.compress(b"2,1\n" * 9 if "quoted" in name else b"")
    path.write_bytes(first + b"".join(packer.compress(BOMBS[name]) for _ in range(1024)) + packer.flush())
    done = subprocess.run([sys.executable, "-c", _READ, str(path)], capture_output=True, text=True, check=True)
    kibibytes, message = done.stdout.split(" ", 1)
    assert "has more than" in message
    assert int(kibibytes) < 400 * 1024


def zstd(data: bytes) -> bytes:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as file:
        file.write(data)
    return bytes(out.getvalue().to_pybytes())


@pytest.mark.parametrize("compression", ["", ".gz"])
@pytest.mark.parametrize("kind", ["npy", "arrow", "parquet", "Arrow stream"])
@pytest.mark.parametrize("is_longer", [False, True])
def test_files_that_were_joined_are_refused(tmp_path: Path, kind: str, compression: str, is_longer: bool) -> None:
    """The end of the second file would be read with the rows of the first one, or the second one would be lost."""
    pack = {"": bytes, ".gz": gzip.compress}[compression]
    parts = []
    for rows in (Y[:20], Y[20:] if is_longer else Y[20:40]):
        table = pa.table({name: rows[:, i] for i, name in enumerate("abc")})
        parts.append(pack(in_memory(kind, rows, table)))
    suffix = "arrow" if kind == "Arrow stream" else kind
    path = tmp_path / f"v.{suffix}{compression}"
    path.write_bytes(parts[0])
    assert len(np.concatenate([chunk.vectors for chunk in open_rows(path).chunks()])) == 20
    path.write_bytes(b"".join(parts))
    with pytest.raises(InputError, match="v\\."):
        list(open_rows(path).chunks())


def in_memory(kind: str, rows: Any, table: pa.Table) -> bytes:
    """The rows as a file of this kind."""
    out = io.BytesIO()
    if kind == "npy":
        np.save(out, rows)
    elif kind == "parquet":
        pq.write_table(table, out)
    else:
        open_writer = pa.ipc.new_stream if kind == "Arrow stream" else pa.ipc.new_file
        with open_writer(out, table.schema) as writer:
            writer.write_table(table, max_chunksize=7)
    return out.getvalue()
