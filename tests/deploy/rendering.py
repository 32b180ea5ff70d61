"""The manifests and the chart, rendered by the kubectl and the Helm that `make helm-test` and `make k8s-test` build."""

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.deploy import files, manifests
from tests.deploy.manifests import Object

TOOLS = Path(os.environ.get("STREAMPCA_KUBERNETES", "/nowhere"))  # of make
HELM = os.environ.get("STREAMPCA_HELM", "/nowhere")
CHART = files.ROOT / "docker" / "helm" / "streampca"
NAMESPACE = "streampca"
KUBERNETES = "1.34"


@dataclass(frozen=True)
class Variant:
    """An overlay with components, and the chart's options for the same."""

    overlay: str
    components: tuple[str, ...] = ()

    @property
    def options(self) -> list[str]:
        """For Helm."""
        chosen = ["store.url="] if self.overlay == "shared-disk" else []
        if "monitoring" in self.components:
            chosen += ["monitoring.serviceMonitors=true", "monitoring.prometheusRule=true"]
        if "autoscaling" in self.components:
            chosen += ["autoscaling.enabled=true"]
        if manifests.transform_of(self.overlay) in self.components:
            chosen += ["transform.enabled=true"]
        if manifests.TRANSFORM_AUTOSCALING in self.components:
            chosen += ["transform.autoscaling.enabled=true"]
        return [part for value in chosen for part in ("--set", value)]

    def __str__(self) -> str:
        return "-".join((self.overlay, *self.components))


BARE = [  # without operators
    Variant(overlay, components)
    for overlay in manifests.OVERLAYS
    for components in ((), (manifests.transform_of(overlay),))
]
VARIANTS = BARE + [Variant(overlay, manifests.components_of(overlay)) for overlay in manifests.OVERLAYS]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of Helm."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "KUBECONFIG": "/dev/null"}
    return subprocess.run(
        [HELM, *arguments, "--namespace", NAMESPACE],
        env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def template(*options: str, release: str = "streampca") -> subprocess.CompletedProcess[str]:
    """Render the chart."""
    return helm("template", release, str(CHART), "--kube-version", KUBERNETES, *options)


def charted(*options: str, release: str = "streampca") -> list[Object]:
    """The objects that the chart makes."""
    outcome = template(*options, release=release)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    return parsed(outcome.stdout)


def kustomized(variant: Variant) -> list[Object]:
    """The objects that Kustomize makes."""
    with tempfile.TemporaryDirectory() as folder:
        top = {
            "resources": [_from(folder, "overlays", variant.overlay)],
            "components": [_from(folder, "components", name) for name in variant.components],
        }
        (Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(top))
        outcome = subprocess.run(
            [TOOLS / "kubectl", "kustomize", folder], capture_output=True, text=True, timeout=120, check=False
        )
    assert (outcome.returncode, outcome.stderr) == (0, "")
    return parsed(outcome.stdout)


def _from(folder: str, *path: str) -> str:
    """The relative path of a folder of the manifests; Kustomize takes no absolute ones."""
    return os.path.relpath(manifests.FOLDER.joinpath(*path), Path(folder).resolve())


def parsed(text: str) -> list[Object]:
    """The objects, sorted, without the annotations that only the chart has: for Helm, and against stale settings."""
    found = [o for o in yaml.load_all(text, yaml.CSafeLoader) if o]
    return sorted((_without_own_annotations(o) for o in found), key=manifests.identity)


def _without_own_annotations(found: Any) -> Any:
    if isinstance(found, list):
        return [_without_own_annotations(part) for part in found]
    if not isinstance(found, dict):
        return found
    rest = {name: _without_own_annotations(part) for name, part in found.items()}
    if isinstance(kept := rest.get("annotations"), dict):
        kept = {n: value for n, value in kept.items() if n not in ("checksum/settings", "helm.sh/resource-policy")}
        rest = {n: part for n, part in rest.items() if n != "annotations"} | ({"annotations": kept} if kept else {})
    return rest
