"""Generates the Kubernetes files of the alerts from rules.yml: `python docker/prometheus/for_kubernetes.py`."""

from pathlib import Path

RULES = Path(__file__).with_name("rules.yml")
MANIFEST = Path(__file__).parents[1] / "kubernetes" / "components" / "monitoring" / "rules.yaml"
CHART_FILE = Path(__file__).parents[1] / "helm" / "streampca" / "files" / "rules.yaml"
_NOTE = "# Generated from docker/prometheus/rules.yml by docker/prometheus/for_kubernetes.py: edit the rules there.\n"
_HEAD = """\
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: streampca
  labels: {app.kubernetes.io/name: streampca, app.kubernetes.io/instance: streampca}
spec:
"""


def texts() -> dict[Path, str]:
    """Each file's content: the groups with their comments, in the manifest under `spec`."""
    groups = ["groups:\n", *RULES.read_text().partition("\ngroups:\n")[2].splitlines(keepends=True)]
    indented = [f"  {line}" if line.strip() else line for line in groups]
    return {MANIFEST: _NOTE + _HEAD + "".join(indented), CHART_FILE: _NOTE + "".join(groups)}


if __name__ == "__main__":
    for path, text in texts().items():
        path.write_text(text)
