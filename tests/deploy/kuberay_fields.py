"""The fields of KubeRay's custom resources that the manifests in deploy/kubernetes use, and KubeRay's rules for them.

Compared field by field with the API references of KubeRay 1.6.2 and 1.7.0, and with the rules that the operator of 1.7
also applies (`ray-operator/controllers/ray/utils/validation.go`). A field that is missing here may be valid: look it up
there. Embedded resources of Kubernetes are checked against Kubernetes' schemas.
"""

from typing import Annotated, Any, Literal

import kubernetes_validate
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

KUBERNETES = "1.34"


def valid(resource: dict[str, Any]) -> dict[str, Any]:
    """Check a resource of Kubernetes itself; unknown fields are errors."""
    kubernetes_validate.validate(resource, KUBERNETES, strict=True)
    return resource


def _pod_template(template: dict[str, Any]) -> dict[str, Any]:
    valid({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": template})
    return template


PodTemplate = Annotated[dict[str, Any], AfterValidator(_pod_template)]
Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
# Options of `ray start`. KubeRay refuses `labels` and those for Redis.
StartParams = dict[Literal["num-cpus", "num-gpus"], str]


class _Fields(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, alias_generator=to_camel)


class _Meta(_Fields):
    # KubeRay and Kubernetes append to these names (the latter five characters), and Services get the result as a name.
    name: Annotated[str, Field(pattern="^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=47)] | None = None
    generate_name: Annotated[str, Field(pattern="^[a-z][-a-z0-9]*$", max_length=42)] | None = None
    namespace: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class _AuthOptions(_Fields):
    mode: Literal["disabled", "token"] = "token"


class _HeadGroup(_Fields):
    ray_start_params: StartParams = {}
    template: PodTemplate


class _WorkerGroup(_Fields):
    group_name: str
    replicas: Count = 0
    min_replicas: Count = 0
    max_replicas: Count = 2**31 - 1
    ray_start_params: StartParams = {}
    template: PodTemplate

    @model_validator(mode="after")
    def _ordered(self) -> "_WorkerGroup":
        if not self.min_replicas <= self.replicas <= self.max_replicas:
            raise ValueError(f"expected minReplicas <= replicas <= maxReplicas in the group {self.group_name}")
        return self


class ClusterSpec(_Fields):
    """RayClusterSpec."""

    ray_version: str | None = None
    enable_in_tree_autoscaling: bool = False
    auth_options: _AuthOptions | None = None
    head_group_spec: _HeadGroup
    worker_group_specs: list[_WorkerGroup] = []


class _JobSpec(_Fields):
    entrypoint: str
    shutdown_after_job_finishes: bool = False
    ttl_seconds_after_finished: Count = 0
    active_deadline_seconds: Annotated[int, Field(ge=1)] | None = None
    backoff_limit: Count = 0
    ray_cluster_spec: ClusterSpec

    @model_validator(mode="after")
    def _shut_down_if_at_a_time(self) -> "_JobSpec":
        if self.ttl_seconds_after_finished and not self.shutdown_after_job_finishes:
            raise ValueError("expected shutdownAfterJobFinishes with ttlSecondsAfterFinished")
        return self


class _ServiceSpec(_Fields):
    serve_config: Annotated[str, Field(alias="serveConfigV2")]
    ray_cluster_config: ClusterSpec


class _Resource(_Fields):
    api_version: Literal["ray.io/v1"]
    metadata: _Meta

    @model_validator(mode="after")
    def _named(self) -> "_Resource":
        if (self.metadata.name is None) == (self.metadata.generate_name is None):
            raise ValueError("expected one of name and generateName")
        return self


class RayJob(_Resource):
    kind: Literal["RayJob"]
    spec: _JobSpec


class RayService(_Resource):
    kind: Literal["RayService"]
    spec: _ServiceSpec
