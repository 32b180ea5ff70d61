"""Runs commands like a container engine does, but with Linux namespaces alone.

The root is made of bind mounts, read-only except for the store; the command is process 1, has the image's user and no
capabilities, and shares the network with the test.
"""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tests.deploy import files
from tests.kafka_broker import wait_until

_SYSTEM = ["/usr", "/bin", "/lib", "/lib64", "/etc", "/dev"]

_SCRIPT = """
set -eu; umask 022
root=$1; shift
mount -t tmpfs -o mode=755 tmpfs "$root"
for path in $SHOWN; do
  if [ -L "$path" ]; then cp -a "$path" "$root$path"; continue; fi
  [ -d "$path" ] || continue
  mkdir -p "$root$path"
  mount --rbind "$path" "$root$path"
  mount -o remount,bind,ro "$root$path"
done
for path in $WRITABLE; do mkdir -p "$root$path"; mount --bind "$path" "$root$path"; done
mkdir "$root/proc"; mount -t proc proc "$root/proc"
mount -o remount,ro "$root"
exec chroot "$root" setpriv --reuid="$UID_WANTED" --regid="$GID_WANTED" --clear-groups --no-new-privs \\
  --inh-caps=-all --bounding-set=-all env -i "$@"
"""


def why_unavailable() -> str | None:
    """Why this machine cannot run containers; None if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "namespaces need Linux and root"
    trying = ["unshare", "--mount", "--pid", "--fork", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        outcome = subprocess.run(trying, capture_output=True, text=True, timeout=20, check=False)
    except OSError as error:
        return f"unshare: {error.strerror}"
    return outcome.stderr.strip() if outcome.returncode else None


class Container:
    """One running command; its output goes to `log`."""

    def __init__(self, image: Path, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        """`image` replaces /opt/streampca; `folder` receives the log and the store."""
        root, store = Path(tempfile.mkdtemp(prefix="root-", dir=folder)), folder / "store"
        store.mkdir(exist_ok=True)
        uid, gid = files.last_argument("USER").split(":")
        os.chown(store, int(uid), int(gid))
        shown = [*_SYSTEM, sys.base_prefix, sysconfig.get_path("purelib"), str(image)]
        self.log = root.with_suffix(".log")
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _SCRIPT, "sh", str(root)]
                + [f"{name}={value}" for name, value in {**_environment(image, store), **environment}.items()]
                + list(command),
                env={
                    "PATH": os.environ["PATH"], "SHOWN": shlex.join(shown), "WRITABLE": str(store),
                    "UID_WANTED": uid, "GID_WANTED": gid,
                },
                stdout=output,
                stderr=subprocess.STDOUT,
            )  # fmt: skip

    def is_running(self) -> bool:
        """True; raises with the output if the command has ended."""
        assert self._process.poll() is None, self.log.read_text()
        return True

    def wait(self, seconds: float = 60) -> int:
        """Wait for the end; return the exit code."""
        return self._process.wait(seconds)

    def stop(self) -> int:
        """Send the image's stop signal and return the exit code."""
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        os.kill(int(children.split()[0]), getattr(signal, files.last_argument("STOPSIGNAL")))
        return self.wait()

    def kill(self) -> None:
        """Kill the command if it still runs."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def running(image: Path, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> Iterator[Container]:
    """A container that is killed at the end of the block."""
    container = Container(image, command, environment, folder)
    try:
        yield container
    finally:
        container.kill()


class Running(Protocol):
    """A container of any engine."""

    log: Path

    def is_running(self) -> bool:
        """True; raises if the command has ended."""


def wait_while_running(container: Running, condition: Callable[[], bool], what: str, timeout_s: float = 90) -> None:
    """Wait for a condition; fails at once if the container ends first."""
    wait_until(lambda: container.is_running() and condition(), timeout_s, f"{what}; {container.log}")


def _environment(image: Path, store: Path) -> dict[str, str]:
    """The image's variables with the test's paths."""
    own = {
        name: value.replace("/opt/streampca", str(image))
        for name, value in files.image_environment(files.architecture()).items()
    }
    return {**own, "PATH": own["PATH"].replace("$PATH", "/usr/bin:/bin"), "STREAMPCA_STORE": str(store)}
