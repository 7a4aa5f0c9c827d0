"""The manifests against what is published: Kubernetes' own schemas, of the oldest release that README names and of the
newest, in which an unknown field is an error; and KubeRay's fields of a RayCluster (ray.io/v1, its API reference for
1.5), whose pods are Kubernetes' again.
"""

from pathlib import Path
from typing import Any, Literal

import kubernetes_validate
import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

KUBERAY = Path(__file__).parents[2] / "infra" / "kuberay"
RELEASES = ("1.27", kubernetes_validate.latest_version())
Texts = dict[str, str]
Kubernetes = dict[str, Any]
"""Checked by Kubernetes' schema."""


class Known(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class AuthOptions(Known):
    mode: Literal["disabled", "token"] = "token"


class AutoscalerOptions(Known):
    resources: Kubernetes | None = None
    image: str | None = None
    imagePullPolicy: str | None = None
    securityContext: Kubernetes | None = None
    idleTimeoutSeconds: int | None = None
    upscalingMode: Literal["Default", "Aggressive", "Conservative"] | None = None
    version: Literal["v1", "v2"] | None = None
    env: list[Kubernetes] = []
    envFrom: list[Kubernetes] = []
    volumeMounts: list[Kubernetes] = []


class Group(Known):
    template: Kubernetes
    rayStartParams: Texts
    resources: Texts = {}
    labels: Texts = {}


class HeadGroup(Group):
    headService: Kubernetes | None = None
    enableIngress: bool | None = None
    serviceType: str | None = None


class WorkerGroup(Group):
    groupName: str
    replicas: int = Field(default=0, ge=0)
    minReplicas: int = Field(ge=0)
    maxReplicas: int = Field(ge=0)
    idleTimeoutSeconds: int | None = None
    numOfHosts: int = 1
    suspend: bool | None = None


class ClusterSpec(Known):
    headGroupSpec: HeadGroup
    workerGroupSpecs: list[WorkerGroup] = []
    rayVersion: str = ""
    authOptions: AuthOptions | None = None
    autoscalerOptions: AutoscalerOptions | None = None
    enableInTreeAutoscaling: bool | None = None
    gcsFaultToleranceOptions: Kubernetes | None = None
    headServiceAnnotations: Texts = {}
    managedBy: str | None = None
    suspend: bool | None = None
    upgradeStrategy: Kubernetes | None = None


class RayCluster(Known):
    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayCluster"]
    metadata: Kubernetes
    spec: ClusterSpec


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((KUBERAY / name).read_text()))


def assert_kubernetes_takes(document: dict[str, Any]) -> None:
    for release in RELEASES:
        kubernetes_validate.validate(document, release, strict=True)


def pod_of(template: Kubernetes) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", **template}


def test_what_is_kubernetes_own_is_as_its_schema_says() -> None:
    for name in ("network.yaml", "store.yaml", "settings.yaml"):
        for document in documents(name):
            assert_kubernetes_takes(document)


def test_ray_cluster_fits_kuberays_and_kubernetes_schemas() -> None:
    [document] = documents("raycluster.yaml")
    spec = RayCluster.model_validate(document).spec
    for group in (spec.headGroupSpec, *spec.workerGroupSpecs):
        assert_kubernetes_takes(pod_of(group.template))
    assert spec.autoscalerOptions is not None
    beside = {"name": "autoscaler", "image": "ray", "resources": spec.autoscalerOptions.resources}
    assert_kubernetes_takes(pod_of({"spec": {"containers": [beside]}}))


def test_a_slip_of_the_pen_is_found() -> None:
    [document] = documents("raycluster.yaml")
    document["spec"]["workerGroupSpecs"][0]["maxReplica"] = 4
    with pytest.raises(ValidationError, match="maxReplica"):
        RayCluster.model_validate(document)
    pod = pod_of(document["spec"]["headGroupSpec"]["template"])
    pod["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(kubernetes_validate.ValidationError, match="volumeMount"):
        assert_kubernetes_takes(pod)
