"""Builds the image with buildah, from a base of Debian's packages, and runs it with runc: no registry and no daemon."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.command_line import succeeded
from tests.deploy import files
from tests.waiting import wait_until

BASE, IMAGE = "localhost/streampca-base", "localhost/streampca"
TOOLS = ("buildah", "debootstrap", "runc")
CERTIFICATES = "/etc/ssl/certs"
TMP = "/tmp"  # noqa: S108 - in the container


class Image(NamedTuple):
    """A built image."""

    root: Path  # its file system, mounted
    config: dict[str, Any]  # its settings, by Docker's names


def call(*command: object) -> str:
    """The output of a command, which must succeed."""
    return succeeded(*command, timeout=900).strip()


def build_base() -> None:
    """An image with Debian's Python, made once; the Dockerfile's own base is in a registry."""
    if call("buildah", "images", "--quiet", "--filter", f"reference={BASE}"):
        return
    with tempfile.TemporaryDirectory() as folder:
        call("debootstrap", "--variant=minbase", "--include=python3-venv,ca-certificates", "bookworm", folder)
        container = call("buildah", "from", "scratch")
        call("buildah", "add", "--quiet", container, folder, "/")
        call("buildah", "commit", "--quiet", "--rm", container, BASE)


@contextlib.contextmanager
def built(*options: str) -> Iterator[Image]:
    """The image of this work tree; with the options of `buildah bud`."""
    build_base()
    # The host's certificates, for a network that replaces those of the package index.
    call("buildah", "bud", "--isolation", "chroot", "--pull-never", "--layers", "--format", "docker",
         "--build-arg", f"PYTHON_IMAGE={BASE}", "--volume", f"{CERTIFICATES}:{CERTIFICATES}:ro",
         "--file", files.DOCKERFILE, "--tag", IMAGE, *options, files.ROOT)  # fmt: skip
    container = call("buildah", "from", "--pull-never", IMAGE)
    try:
        config = json.loads(call("buildah", "inspect", "--type", "image", IMAGE))["Docker"]["config"]
        yield Image(Path(call("buildah", "mount", container)), config)
    finally:
        call("buildah", "rm", container)


class Container:
    """One running command, confined like the compose file's services; its output goes to `log`."""

    def __init__(
        self, image: Image, command: Sequence[str], environment: Mapping[str, str], memory: int, folder: Path
    ) -> None:
        """`memory` is the limit in bytes; `folder` receives the log and the store."""
        self._bundle = Path(tempfile.mkdtemp(prefix="bundle-", dir=folder))
        self._name, self.log = f"streampca-{self._bundle.name}", self._bundle / "log"
        (self._bundle / "config.json").write_text(json.dumps(_spec(image, command, environment, memory, folder)))
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                ["runc", "run", "--bundle", str(self._bundle), self._name],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def is_running(self) -> bool:
        """True; raises with the output if the command has ended."""
        assert self._process.poll() is None, self.log.read_text()
        return True

    def execute(self, *command: str) -> int:
        """The exit code of another command in the container, such as a health check."""
        return subprocess.run(["runc", "exec", self._name, *command], capture_output=True, check=False).returncode

    def resident_mib(self, kind: str = "VmRSS") -> float:
        """The memory that the command has resident, in MiB; VmHWM: the most that it has had."""
        state = json.loads(call("runc", "state", self._name))
        status = Path(f"/proc/{state['pid']}/status").read_text()
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(kind)) / 1024

    def wait(self, seconds: float = 60) -> int:
        return self._process.wait(seconds)

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        call("runc", "kill", self._name, "TERM")
        return self.wait()

    def close(self) -> None:
        """Kill the command if it still runs, and delete what runc has kept."""
        subprocess.run(["runc", "delete", "--force", self._name], capture_output=True, check=False)
        self._process.wait(60)


@contextlib.contextmanager
def running(
    image: Image, command: Sequence[str], environment: Mapping[str, str], memory: int, folder: Path
) -> Iterator[Container]:
    """A container that is removed at the end of the block."""
    with contextlib.closing(Container(image, command, environment, memory, folder)) as container:
        yield container


def wait_while_running(container: Container, condition: Callable[[], bool], what: str, timeout_s: float = 90) -> None:
    """Wait for a condition; fails at once if the container ends first."""
    wait_until(lambda: container.is_running() and condition(), timeout_s, f"{what}; {container.log}")


def why_unavailable() -> str | None:
    """Why this machine cannot build and run the image; None if it can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return "not root" if os.geteuid() else f"not installed: {', '.join(missing)}" if missing else None


def _spec(
    image: Image, command: Sequence[str], environment: Mapping[str, str], memory: int, folder: Path
) -> dict[str, Any]:
    """What runc is to do: the image's settings, a read-only root, no capabilities, the network of the host."""
    uid, gid = map(int, image.config["User"].split(":"))
    store = folder / "store"
    store.mkdir(exist_ok=True)
    os.chown(store, uid, gid)
    own = dict(pair.split("=", 1) for pair in image.config["Env"])
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": uid, "gid": gid},
            "args": [*command],
            "env": [f"{name}={value}" for name, value in {**own, **environment}.items()],
            "cwd": image.config["WorkingDir"],
            "capabilities": {},
            "noNewPrivileges": True,
        },
        "root": {"path": str(image.root), "readonly": True},
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
            {"destination": TMP, "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"]},
            {"destination": own["STREAMPCA_STORE"], "type": "bind", "source": str(store), "options": ["bind", "rw"]},
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")],
            "resources": {"memory": {"limit": memory, "swap": memory}},
        },
    }
