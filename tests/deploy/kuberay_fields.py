"""What the manifests in deploy/kubernetes use of KubeRay's custom resources, and what KubeRay asks of it.

Compared field by field with the API references of KubeRay 1.6.2 and 1.7.0, and with the rules by which the operator
of 1.7 refuses a resource that fits them (`ray-operator/controllers/ray/utils/validation.go`). A name that is not here
may be right, and has to be looked up in them. What is Kubernetes' own inside is checked against Kubernetes' schemas.
"""

from typing import Annotated, Any, Literal

import kubernetes_validate
from packaging.version import Version
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
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
# Options of `ray start`; KubeRay refuses `labels` among them, and what concerns Redis.
StartParams = dict[Literal["num-cpus", "num-gpus"], str]


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Meta(_Fields):
    # KubeRay appends to the name, Kubernetes five characters to what it generates one from; Services are named so.
    name: Annotated[str, Field(pattern="^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=47)] | None = None
    generateName: Annotated[str, Field(pattern="^[a-z][-a-z0-9]*$", max_length=42)] | None = None  # noqa: N815
    namespace: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _AuthOptions(_Fields):
    mode: Literal["disabled", "token"] = "token"


class _HeadGroup(_Fields):
    rayStartParams: StartParams = {}  # noqa: N815
    template: PodTemplate

    @model_validator(mode="after")
    def _without_redis(self) -> "_HeadGroup":
        env = {each["name"] for each in self.template["spec"]["containers"][0].get("env", ())}
        if refused := env & {"RAY_REDIS_ADDRESS", "REDIS_USERNAME"}:
            raise ValueError(f"expected gcsFaultToleranceOptions in the place of {sorted(refused)}")
        return self


class _WorkerGroup(_Fields):
    groupName: str  # noqa: N815
    replicas: Count = 0
    minReplicas: Count = 0  # noqa: N815
    maxReplicas: Count = 2**31 - 1  # noqa: N815
    rayStartParams: StartParams = {}  # noqa: N815
    template: PodTemplate

    @model_validator(mode="after")
    def _ordered(self) -> "_WorkerGroup":
        if not self.minReplicas <= self.replicas <= self.maxReplicas:
            raise ValueError(f"expected minReplicas <= replicas <= maxReplicas in the group {self.groupName}")
        return self


class ClusterSpec(_Fields):
    """RayClusterSpec."""

    rayVersion: str | None = None  # noqa: N815
    enableInTreeAutoscaling: bool = False  # noqa: N815
    authOptions: _AuthOptions | None = None  # noqa: N815
    headGroupSpec: _HeadGroup  # noqa: N815
    workerGroupSpecs: list[_WorkerGroup] = []  # noqa: N815

    @model_validator(mode="after")
    def _of_a_ray_with_tokens(self) -> "ClusterSpec":
        token = self.authOptions is not None and self.authOptions.mode == "token"
        if token and Version(self.rayVersion or "0") < Version("2.52.0"):
            raise ValueError(f"expected rayVersion 2.52.0 or newer with authOptions, got {self.rayVersion}")
        return self


class _JobSpec(_Fields):
    entrypoint: str
    shutdownAfterJobFinishes: bool = False  # noqa: N815
    ttlSecondsAfterFinished: Count = 0  # noqa: N815
    activeDeadlineSeconds: Annotated[int, Field(ge=1)] | None = None  # noqa: N815
    backoffLimit: Count = 0  # noqa: N815
    rayClusterSpec: ClusterSpec  # noqa: N815

    @model_validator(mode="after")
    def _shut_down_if_at_a_time(self) -> "_JobSpec":
        if self.ttlSecondsAfterFinished and not self.shutdownAfterJobFinishes:
            raise ValueError("expected shutdownAfterJobFinishes with ttlSecondsAfterFinished")
        return self


class _ServiceSpec(_Fields):
    serveConfigV2: str  # noqa: N815
    rayClusterConfig: ClusterSpec  # noqa: N815


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
