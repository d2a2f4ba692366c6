"""The fields of KubeRay's custom resources that the manifests in deploy/kubernetes may use, as of KubeRay 1.6.

Written after its API reference (https://ray-project.github.io/kuberay/reference/api/): a name that is not here is
unknown to KubeRay, or new to us. What is Kubernetes' own inside is checked against Kubernetes' schemas.
"""

from typing import Annotated, Any, Literal

import kubernetes_validate
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

KUBERNETES = "1.34"


def valid(resource: dict[str, Any]) -> dict[str, Any]:
    """Checks a resource of Kubernetes' own, unknown fields included."""
    kubernetes_validate.validate(resource, KUBERNETES, strict=True)
    return resource


def _pod_template(template: dict[str, Any]) -> dict[str, Any]:
    valid({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": template})
    return template


PodTemplate = Annotated[dict[str, Any], AfterValidator(_pod_template)]
Count = Annotated[int, Field(ge=0)]


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Meta(_Fields):
    name: str | None = None
    generateName: str | None = None  # noqa: N815  # Kubernetes' names
    namespace: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _AuthOptions(_Fields):
    mode: Literal["disabled", "token"]


class _HeadGroup(_Fields):
    rayStartParams: dict[str, str]  # noqa: N815
    template: PodTemplate
    serviceType: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"  # noqa: N815


class _WorkerGroup(_Fields):
    groupName: str  # noqa: N815
    replicas: Count = 0
    minReplicas: Count  # noqa: N815
    maxReplicas: Count  # noqa: N815
    numOfHosts: Annotated[int, Field(ge=1)] = 1  # noqa: N815
    idleTimeoutSeconds: Count | None = None  # noqa: N815
    rayStartParams: dict[str, str]  # noqa: N815
    template: PodTemplate

    @model_validator(mode="after")
    def _ordered(self) -> "_WorkerGroup":
        if not self.minReplicas <= self.replicas <= self.maxReplicas:
            raise ValueError(f"expected minReplicas <= replicas <= maxReplicas in the group {self.groupName}")
        return self


class ClusterSpec(_Fields):
    """RayClusterSpec."""

    rayVersion: str  # noqa: N815
    enableInTreeAutoscaling: bool = False  # noqa: N815
    authOptions: _AuthOptions | None = None  # noqa: N815
    headGroupSpec: _HeadGroup  # noqa: N815
    workerGroupSpecs: list[_WorkerGroup]  # noqa: N815


class _JobSpec(_Fields):
    entrypoint: str
    shutdownAfterJobFinishes: bool = False  # noqa: N815
    ttlSecondsAfterFinished: Count = 0  # noqa: N815
    activeDeadlineSeconds: Annotated[int, Field(ge=1)] | None = None  # noqa: N815
    backoffLimit: Count = 0  # noqa: N815
    submissionMode: Literal["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"] = "K8sJobMode"  # noqa: N815
    rayClusterSpec: ClusterSpec  # noqa: N815


class _ServiceSpec(_Fields):
    serveConfigV2: str  # noqa: N815
    rayClusterConfig: ClusterSpec  # noqa: N815
    excludeHeadPodFromServeSvc: bool = False  # noqa: N815


class _Resource(_Fields):
    apiVersion: Literal["ray.io/v1"]  # noqa: N815
    metadata: _Meta

    @model_validator(mode="after")
    def _named(self) -> "_Resource":
        if (self.metadata.name is None) == (self.metadata.generateName is None):
            raise ValueError("expected one of name and generateName")
        return self


class RayJob(_Resource):
    kind: Literal["RayJob"]
    spec: _JobSpec


class RayService(_Resource):
    kind: Literal["RayService"]
    spec: _ServiceSpec
