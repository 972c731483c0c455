"""The manifests in docker/kubernetes/: of the form of Kubernetes' API, least rights,
and what the sidecar needs.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.fake_nvml import Gpu
from tests.unit.dags.conftest import DAGS
from tests.unit.power.limits.test_sidecar import ALONE, LIMITS, Peer, card  # noqa: F401

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docker" / "kubernetes"
PAGES = [ROOT / "docs" / "how-to" / "kubernetes.md", ROOT / "docs" / "how-to" / "several-gpus.md"]
# the oldest that the page names, and the newest known
VERSIONS = ["1.31", kubernetes_validate.latest_version()]


def documents() -> list[dict[str, Any]]:
    """The manifests that kustomize puts together."""
    names = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert sorted(names) == sorted(
        path.name for path in FOLDER.glob("*.yaml") if path.name != "kustomization.yaml"
    )
    return [each for name in names for each in yaml.safe_load_all((FOLDER / name).read_text())]


def of_page(path: Path) -> list[dict[str, Any]]:
    """The manifests that a page shows."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", path.read_text(), re.M | re.S)
    found = [each for block in blocks for each in yaml.safe_load_all(block)]
    return [each for each in found if "apiVersion" in each]


def only(kind: str) -> dict[str, Any]:
    (found,) = (each for each in documents() if each["kind"] == kind)
    return found


def sidecar() -> dict[str, Any]:
    (container,) = only("DaemonSet")["spec"]["template"]["spec"]["containers"]
    return container  # type: ignore[no-any-return]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "document",
    [*documents(), *(each for page in PAGES for each in of_page(page))],
    ids=lambda each: f"{each['kind']} {each['metadata']['name']}",
)
def test_each_manifest_fits_the_schema(document: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize(
    "broken", [{"updateStrategi": {}}, {"minReadySeconds": "soon"}, {"template": []}]
)
def test_the_schema_refuses_what_is_none(broken: dict[str, Any]) -> None:
    document = only("DaemonSet")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(
            {**document, "spec": document["spec"] | broken}, VERSIONS[1], strict=True
        )


def test_kustomize_finds_what_it_puts_together() -> None:
    plan = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert set(plan) == {"apiVersion", "kind", "resources", "images"}
    (image,) = plan["images"]
    assert sidecar()["image"] == image["name"]
    assert set(image) == {"name", "newName", "newTag"}
    namespaces = {
        each["metadata"]["namespace"]
        for each in documents()
        if each["kind"] in ("DaemonSet", "NetworkPolicy")
    }
    assert namespaces == {only("Namespace")["metadata"]["name"]}
    spec = only("DaemonSet")["spec"]
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]


def test_the_sidecar_has_the_rights_that_it_needs_and_no_other() -> None:
    pod = only("DaemonSet")["spec"]["template"]["spec"]
    container = sidecar()
    rights = container["securityContext"]
    assert rights["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN", "CHOWN"]}
    assert rights["readOnlyRootFilesystem"]
    assert "privileged" not in rights
    assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & set(pod)
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert "nvidia.com/gpu" not in str(container["resources"]), (
        "it takes no GPU away from trainings"
    )
    assert {"memory", "ephemeral-storage"} == set(container["resources"]["limits"]), (
        "its log counts as storage"
    )
    policy = only("NetworkPolicy")["spec"]
    assert policy == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}, "no peer is allowed"


def test_records_are_mounted_by_the_sidecar_alone_and_the_socket_by_a_claim() -> None:
    pod = only("DaemonSet")["spec"]["template"]["spec"]
    mounted = {m["mountPath"]: m["name"] for m in sidecar()["volumeMounts"]}
    paths = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"]}
    assert {path: paths[name] for path, name in mounted.items()} == {
        p: p for p in ("/run/zeus", "/run/zeus-limits")
    }
    volume = only("PersistentVolume")
    claim = only("PersistentVolumeClaim")
    assert volume["spec"]["hostPath"]["path"] == "/run/zeus"
    assert volume["spec"]["claimRef"] == {k: claim["metadata"][k] for k in ("name", "namespace")}
    assert claim["spec"]["volumeName"] == volume["metadata"]["name"]
    assert volume["spec"]["accessModes"] == claim["spec"]["accessModes"] == ["ReadOnlyMany"]
    assert volume["spec"]["storageClassName"] == claim["spec"]["storageClassName"] == ""


def test_the_example_fits_the_manifests() -> None:
    assert str(DAGS) in sys.path
    import zeus_kubernetes

    task = zeus_kubernetes.dag.get_task("train")
    claim = only("PersistentVolumeClaim")["metadata"]
    group = int(sidecar()["args"][sidecar()["args"].index("--group") + 1])
    (power, _), (mount, _) = task.volumes, task.volume_mounts
    source = power.persistent_volume_claim
    assert (task.namespace, source.claim_name, source.read_only) == (
        claim["namespace"],
        claim["name"],
        True,
    )
    assert (mount.name, mount.mount_path, mount.read_only) == (power.name, "/run/zeus", True)
    assert task.security_context.supplemental_groups == [group]
    assert task.env_vars["ZEUS_POWER_SOCKET"] == "/run/zeus/power.sock"
    assert task.retries
    pod = task.security_context
    container = task.container_security_context
    # What the level "restricted" of Pod Security asks for.
    assert (pod.run_as_non_root, pod.seccomp_profile.type) == (True, "RuntimeDefault")
    assert (container.allow_privilege_escalation, container.capabilities.drop) == (False, ["ALL"])


@pytest.fixture
def started(tmp_path: Path, card: Gpu) -> Iterator[subprocess.Popen[str]]:  # noqa: F811
    """The container's program with its arguments, in folders as kubelet makes them:
    mode 755, empty.
    """
    for name in ("zeus", "zeus-limits"):
        (tmp_path / name).mkdir(mode=0o755)
    words = [
        *sidecar()["args"],
        "--socket",
        str(tmp_path / "zeus/power.sock"),
        "--state",
        str(tmp_path / "zeus-limits"),
    ]
    if os.geteuid():
        words[words.index("--group") + 1] = str(os.getgid())  # another group needs CAP_CHOWN
    image = tmp_path / "zeus_power"
    image.mkdir()
    for name in ALONE:
        shutil.copy(LIMITS / name, image)
    process = subprocess.Popen(
        [sys.executable, "-S", "-m", "zeus_power.sidecar_server", *words],
        cwd=tmp_path,
        env={**os.environ, "FAKE_NVML_ROOT": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def test_it_serves_in_folders_as_kubelet_makes_them(
    started: subprocess.Popen[str],
    tmp_path: Path,
) -> None:
    assert "serving GPU-" in (started.stderr.readline() if started.stderr else "")
    path = tmp_path / "zeus" / "power.sock"
    found = path.stat()
    assert stat.S_IMODE(found.st_mode) == 0o660
    assert found.st_gid == (os.getgid() if os.geteuid() else 50000)
    assert stat.S_IMODE((tmp_path / "zeus-limits").stat().st_mode) == 0o700
    with Peer(path) as peer:
        assert peer.ask({"do": "limits"})["ok"]
