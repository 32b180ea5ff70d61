"""DirectoryStore on killed writers, full and read-only disks, and missing permissions."""

import errno
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from streampca.errors import StoreError
from streampca.stores import directory
from streampca.stores.directory import DirectoryStore
from tests.errors import refusal

SIZE = 300_000


def list_files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def assert_fails(action: Callable[[], object], *parts: str) -> None:
    """With one line that has these parts."""
    text = refusal(StoreError, action)
    for part in parts:
        assert part in text


# --- killed writers -------------------------------------------------------------------------------------------------

WRITER = f"""
import itertools, sys
from streampca.stores.directory import DirectoryStore
store = DirectoryStore(sys.argv[1])
for i in itertools.count():
    store.write(f"a/{{i % 3}}", i.to_bytes(8, "big") * {SIZE // 8})
    if i == 0:  # from now on most moments are within a write, however slow the disk is
        print("ready", flush=True)
"""


def is_complete(data: bytes) -> bool:
    return len(data) == SIZE // 8 * 8 and data == data[:8] * (SIZE // 8)


@pytest.mark.slow
def test_a_killed_writer_never_leaves_a_partial_file(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    rng = random.Random(7)
    for _ in range(25):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
        writer.stdout.readline()
        time.sleep(rng.uniform(0.0, 0.05))  # kill at a random moment
        writer.kill()
        writer.wait()
        writer.stdout.close()
        assert set(store.names("a")) <= {"a/0", "a/1", "a/2"}
        assert all(is_complete(store.read(name)) for name in store.names("a"))
    assert store.names("a")
    assert any("~" in name for name in list_files(tmp_path)), "no kill happened during a write: nothing was tested"


def test_temporary_files_of_a_killed_writer_are_removed_after_five_minutes(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    store.write("a/b", b"kept")
    fresh = tmp_path / "a" / "~fresh"
    old = tmp_path / "a" / "~old"
    for path in (fresh, old):
        path.write_bytes(b"half of a fi")
    os.utime(fresh, (time.time() - 250,) * 2)
    for path in (old, tmp_path / "a" / "b"):
        os.utime(path, (time.time() - 310,) * 2)
    assert store.names("a") == ["a/b"]
    store.check()
    assert list_files(tmp_path) == ["a/b", "a/~fresh"]


def test_a_writer_whose_temporary_file_was_removed_reports_it_and_can_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(tmp_path)
    other = DirectoryStore(tmp_path)
    store.write("a/b", b"old")
    write_durably = directory._write_durably

    def hang(path: Path, data: bytes) -> None:
        write_durably(path, data)
        monkeypatch.undo()
        os.utime(path, (time.time() - 310,) * 2)
        other.check()

    monkeypatch.setattr(directory, "_write_durably", hang)
    assert "cannot write" in refusal(StoreError, store.write, "a/b", b"new")
    assert store.read("a/b") == b"old"
    store.write("a/b", b"new")
    assert store.read("a/b") == b"new"


# --- a full disk ----------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True)
    if mount.returncode != 0:
        pytest.skip("this user cannot mount file systems")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_keeps_the_old_file_and_raises(small_disk: Path) -> None:
    store = DirectoryStore(small_disk)
    store.write("a/b", b"old" * 1000)
    assert_fails(lambda: store.write("a/b", bytes(400_000)), "No space left", str(small_disk), "free some space")
    assert store.read("a/b") == b"old" * 1000
    assert list_files(small_disk) == ["a/b"]  # the partial file was removed
    store.write("a/b", b"new")
    assert store.read("a/b") == b"new"


def create_failing_function(code: int) -> Callable[..., None]:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


def test_a_file_is_flushed_before_it_has_its_name_and_the_folder_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DirectoryStore(tmp_path)
    store.write("a/b", b"old")
    steps: list[str] = []

    def record_calls(step: str, function: Callable[..., None]) -> Callable[..., None]:
        def record(first: Any, *rest: Any) -> None:
            folder = step == "fsync" and Path(f"/proc/self/fd/{first}").resolve().is_dir()
            assert step == "fsync" or (first.parent, first.read_bytes()[:3]) == (rest[0].parent, b"new")
            steps.append(f"{step} folder" if folder else step)
            function(first, *rest)

        return record

    for step in ("fsync", "replace", "link"):
        monkeypatch.setattr(os, step, record_calls(step, getattr(os, step)))
    store.write("a/b", b"new")
    assert store.create("a/c", b"new")
    assert not store.create("a/c", b"newer")  # the process that created it may have died before it flushed the folder
    assert steps == ["fsync", "replace", "fsync folder", *["fsync", "link", "fsync folder"] * 2]


@pytest.mark.parametrize(
    ("verb", "step"), [("write", "fsync"), ("write", "replace"), ("create", "fsync"), ("create", "link")]
)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_failed_step_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, step: str, code: int
) -> None:
    store = DirectoryStore(tmp_path)
    name = "a/b" if verb == "write" else "a/c"
    store.write("a/b", b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, step, create_failing_function(code))
        assert_fails(lambda: getattr(store, verb)(name, b"new"), os.strerror(code), str(tmp_path / name))
    assert list_files(tmp_path) == ["a/b"]
    assert store.read("a/b") == b"old"


@pytest.mark.parametrize(("most", "free", "words"), [(9, 0, "no free inode"), (0, 0, "space"), (9, 9, "space")])
def test_a_full_file_system_says_whether_files_or_space_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, free: int, words: str
) -> None:
    monkeypatch.setattr(os, "fsync", create_failing_function(errno.ENOSPC))
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_files=most, f_favail=free))
    assert_fails(lambda: DirectoryStore(tmp_path).write("a/b", b"x"), "No space left", words)


def test_a_file_system_that_cannot_flush_folders_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def refuse_folders(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").resolve().is_dir():
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    DirectoryStore(tmp_path).write("a/b", b"x")
    assert DirectoryStore(tmp_path).read("a/b") == b"x"


def test_a_folder_made_by_a_write_that_failed_or_a_process_that_was_killed_is_flushed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    store = DirectoryStore(tmp_path)
    fsync = os.fsync
    flushed: list[int] = []
    broken = [True]

    def flush(descriptor: int) -> None:
        if broken[0]:
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)
        flushed.append(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", flush)
    for _ in range(2):
        refusal(StoreError, store.write, "a/b/c", b"data")
    broken[0] = False
    store.write("a/b/c", b"data")
    folders = (tmp_path.parent, tmp_path, tmp_path / "a", tmp_path / "a" / "b")
    assert {folder.stat().st_ino for folder in folders} <= set(flushed)
    flushed.clear()
    store.write("a/b/c", b"data")
    assert len(flushed) == 2  # the file and its folder


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_file_system_without_hard_links_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "link", create_failing_function(code))
    store = DirectoryStore(tmp_path)
    written = list[bytes]()
    replace = Path.replace

    def record_and_replace(source: Path, target: Path) -> Path:
        assert not target.exists()
        written.append(source.read_bytes())
        return replace(source, target)

    monkeypatch.setattr(Path, "replace", record_and_replace)
    assert (store.create("a/b", b"first"), store.create("a/b", b"second")) == (True, False)
    assert written == [b"first"]
    assert store.read("a/b") == b"first"
    assert list_files(tmp_path) == ["a/b"]
    (tmp_path / "a" / "~c").touch()  # another process is creating it
    assert store.create("a/c", b"third") is False


# --- permissions ----------------------------------------------------------------------------------------------------


def test_a_read_only_disk_is_readable_and_refuses_writes(small_disk: Path) -> None:
    store = DirectoryStore(small_disk)
    store.write("a/b", b"old")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for action in (lambda: store.write("a/b", b"new"), lambda: store.delete("a/b"), store.check):
        assert_fails(action, "Read-only file system", str(small_disk), "mount it writable")
    assert store.read("a/b") == b"old"
    assert store.names("a") == ["a/b"]


OTHER_USER = """
import os, sys
from streampca.errors import StoreError
from streampca.stores import directory
from streampca.stores.directory import DirectoryStore
store = DirectoryStore(sys.argv[1])
store.names("warm-up")  # import everything before dropping privileges
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
for action in (lambda: store.write("a/b", b"new"), lambda: store.read("a/b"), lambda: store.names("a"), store.check):
    try:
        action()
        print("allowed")
    except StoreError as error:
        print(error)
"""


def run_as_other_user(root: Path) -> list[str]:
    process = subprocess.run([sys.executable, "-c", OTHER_USER, str(root)], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


@pytest.fixture
def open_path(tmp_path: Path) -> Path:
    """A folder that every user can enter; pytest's folders are private."""
    for folder in (tmp_path, *tmp_path.parents[:3]):
        # /tmp is only compared here, not used.
        if folder.stat().st_uid == os.geteuid() and folder != Path("/tmp"):  # noqa: S108
            folder.chmod(0o755)
    return tmp_path


def test_missing_permissions_are_a_one_line_error(open_path: Path) -> None:
    store = DirectoryStore(open_path / "store")
    store.write("a/b", b"old")
    (open_path / "store" / "a").chmod(0o000)
    (open_path / "store").chmod(0o555)
    try:
        lines = run_as_other_user(open_path / "store")
    finally:
        (open_path / "store" / "a").chmod(0o755)
        (open_path / "store").chmod(0o755)
    assert len(lines) == 4
    for line, verb in zip(lines, ["write", "read", "list", "write"], strict=True):
        assert line.startswith(f"cannot {verb} {open_path / 'store'}")
        assert "Permission denied (this user needs permission to read and write there)" in line
    assert store.read("a/b") == b"old"


def test_files_and_folders_are_closed_to_others(tmp_path: Path) -> None:
    """Files hold raw vectors."""
    before = os.umask(0)
    try:
        store = DirectoryStore(tmp_path / "store")
        store.check()
        store.write("a/b/file.npz", b"data")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in [store.root, *store.root.rglob("*")]}
    assert modes == {"store": 0o750, "a": 0o750, "b": 0o750, "file.npz": 0o640}


def test_a_file_in_place_of_the_store_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "store").write_bytes(b"")
    store = DirectoryStore(tmp_path / "store")
    for action in (store.check, lambda: store.write("a/b", b""), lambda: store.names("a"), lambda: store.read("a/b")):
        assert_fails(action, str(tmp_path / "store"), "a file is in the place of a folder")


def test_the_store_is_created_when_first_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = DirectoryStore("new/store")
    assert store.names("a") == []
    assert store.missing() == str(tmp_path / "new" / "store")
    assert not (tmp_path / "new").exists()
    store.check()
    assert list_files(tmp_path) == []
    assert (tmp_path / "new" / "store").is_dir()
    assert store.missing() is None


@pytest.mark.parametrize("use", [lambda store: store.write("a/b/1", b"1"), lambda store: store.names("a/b")])
def test_a_folder_that_vanishes_with_its_volume_is_not_created_beneath(
    tmp_path: Path, use: Callable[[DirectoryStore], object]
) -> None:
    volume = tmp_path / "volume"
    DirectoryStore(volume).write("a/b/0", b"0")
    store = DirectoryStore(volume)
    use(store)
    volume.rename(tmp_path / "unmounted")
    volume.mkdir()
    assert "a/b, which is gone, as is all else in" in refusal(StoreError, store.write, "a/b/2", b"2")
    assert not list(volume.iterdir())
    volume.rmdir()
    (tmp_path / "unmounted").rename(volume)
    store.write("a/b/2", b"2")
    assert store.names("a/b")[-1] == "a/b/2"


def test_a_folder_that_vanishes_alone_is_created_again(tmp_path: Path) -> None:
    """As of a partition whose files a cleaner has deleted."""
    store = DirectoryStore(tmp_path)
    for name in ("a/b/0", "c"):
        store.write(name, b"0")
    shutil.rmtree(tmp_path / "a")
    store.write("a/b/1", b"1")
    assert store.names("a/b") == ["a/b/1"]


def test_a_store_that_vanishes_is_not_created_again(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "volume")
    store.write("a/b/0", b"0")
    shutil.rmtree(tmp_path / "volume")
    for name in ("a/b/1", "c/d/1", "e"):
        assert "which is gone" in refusal(StoreError, store.write, name, b"1")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("location", [".", "store", "./a/b", ".."])
def test_a_relative_folder_is_the_one_of_the_folder_where_the_process_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, location: str
) -> None:
    started_in = tmp_path / "started"
    started_in.mkdir()
    monkeypatch.chdir(started_in)
    store = DirectoryStore(location)
    store.check()
    store.write("models/readings/1.npz", b"a model")
    monkeypatch.chdir(tmp_path)
    assert (started_in / location / "models/readings/1.npz").read_bytes() == b"a model"
    assert store.read("models/readings/1.npz") == b"a model"
