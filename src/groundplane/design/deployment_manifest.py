"""A Kubernetes manifest of a planned deployment: for each pool a workload and a service, and scaling limits.

Replicas within a server are a Deployment; those that span servers a LeaderWorkerSet, whose operator
(leaderworkerset.sigs.k8s.io) the cluster must have. The text is for a person to look through and apply.
"""

from __future__ import annotations

from typing import Any, Final

import yaml

from groundplane.design.deployment_launch import PORT, Launch
from groundplane.spec.cluster import ClusterSpec
from groundplane.spec.deployment import DeploymentSpec, ReplicaPool

_RESOURCES: Final = {
    "NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu", "Intel": "gpu.intel.com/i915",
    "Google": "google.com/tpu", "AWS": "aws.amazon.com/neuron", "Huawei": "huawei.com/Ascend910",
}  # fmt: skip
_IMAGES: Final = {"sglang": "lmsysorg/sglang:latest"}
_VLLM_IMAGE: Final = "vllm/vllm-openai:latest"
_METRICS: Final = {"sglang": "sglang:num_running_reqs"}
_VLLM_METRIC: Final = "vllm:num_requests_running"
_SHARED_MEMORY: Final = "16Gi"
_DRAIN_S: Final = 300


def manifest(spec: DeploymentSpec, cluster: ClusterSpec, launches: tuple[Launch, ...]) -> str:
    """All documents as one YAML text."""
    documents: list[dict[str, Any]] = []
    for pool, launch in zip(spec.pools, launches, strict=True):
        engine = "sglang" if (pool.engine or spec.engine) == "sglang" else "vllm"
        documents.append(_workload(spec, pool, launch, cluster, engine))
        documents.append(_service(spec, pool))
        if pool.autoscale is not None and launch.chips <= cluster.server.num_chips:
            documents.append(_scaler(spec, pool, engine))
    return "---\n".join(
        yaml.dump(document, Dumper=_WithoutAliases, sort_keys=False, width=110) for document in documents
    )


class _WithoutAliases(yaml.SafeDumper):
    """Writes equal parts out each time: anchors are valid, and read by few."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        return True


def _names(spec: DeploymentSpec, pool: ReplicaPool) -> tuple[str, dict[str, str]]:
    # Names of Kubernetes have no dots or underscores.
    name = f"{spec.name}-{pool.name}".replace(".", "-").replace("_", "-")[:52].strip("-")
    labels = {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": spec.name.replace("_", "-")}
    return name, labels


def _workload(
    spec: DeploymentSpec, pool: ReplicaPool, launch: Launch, cluster: ClusterSpec, engine: str
) -> dict[str, Any]:
    name, labels = _names(spec, pool)
    per_server = cluster.server.num_chips
    servers = -(-launch.chips // per_server)
    command = list(launch.sglang if engine == "sglang" else launch.vllm)
    if servers == 1:
        template = _pod(labels, command, launch.chips, cluster, engine, ready=True)
        return {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "replicas": pool.replicas,
                "selector": {"matchLabels": labels},
                "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
                "template": template,
            },
        }
    leader = _pod(labels, _spanning(command, servers, engine), per_server, cluster, engine, ready=True)
    worker = _pod(labels, _spanning(command, servers, engine), per_server, cluster, engine, ready=False)
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "replicas": pool.replicas,
            "leaderWorkerTemplate": {
                "size": servers,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": leader,
                "workerTemplate": worker,
            },
        },
    }


def _spanning(command: list[str], servers: int, engine: str) -> list[str]:
    """The same command on every server of a replica, each knowing its place from the LeaderWorkerSet."""
    if engine == "sglang":
        places = ["--nnodes", str(servers), "--node-rank", "$(LWS_WORKER_INDEX)",
                  "--dist-init-addr", "$(LWS_LEADER_ADDRESS):20000"]  # fmt: skip
    else:
        places = ["--nnodes", str(servers), "--node-rank", "$(LWS_WORKER_INDEX)",
                  "--master-addr", "$(LWS_LEADER_ADDRESS)"]  # fmt: skip
    return command + places


def _pod(
    labels: dict[str, str], command: list[str], chips: int, cluster: ClusterSpec, engine: str, *, ready: bool
) -> dict[str, Any]:
    resource = _RESOURCES.get(cluster.chip.vendor, "nvidia.com/gpu")
    container: dict[str, Any] = {
        "name": engine,
        "image": _IMAGES.get(engine, _VLLM_IMAGE),
        "command": command[:1],
        "args": command[1:],
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": {"limits": {resource: str(chips)}, "requests": {resource: str(chips)}},
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "models", "mountPath": "/models"},
        ],
    }
    if ready:
        probe = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 10}
        container["readinessProbe"] = probe | {"failureThreshold": 3}
        # Weights of hundreds of gigabytes take their time.
        container["startupProbe"] = probe | {"failureThreshold": 180}
    return {
        "metadata": {"labels": labels},
        "spec": {
            "terminationGracePeriodSeconds": _DRAIN_S,
            "containers": [container],
            "volumes": [
                {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": _SHARED_MEMORY}},
                {"name": "models", "persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
            ],
        },
    }


def _service(spec: DeploymentSpec, pool: ReplicaPool) -> dict[str, Any]:
    name, labels = _names(spec, pool)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {"selector": labels, "ports": [{"name": "http", "port": PORT, "targetPort": "http"}]},
    }


def _scaler(spec: DeploymentSpec, pool: ReplicaPool, engine: str) -> dict[str, Any]:
    name, labels = _names(spec, pool)
    limits = pool.autoscale
    if limits is None:
        return {}
    metric = {
        "type": "Pods",
        "pods": {
            "metric": {"name": _METRICS.get(engine, _VLLM_METRIC)},
            "target": {"type": "AverageValue", "averageValue": str(limits.target_requests)},
        },
    }
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "minReplicas": max(limits.min_replicas, 1),
            "maxReplicas": limits.max_replicas,
            "metrics": [metric],
            "behavior": {
                "scaleUp": {"stabilizationWindowSeconds": min(round(limits.up_patience_s), 3600)},
                "scaleDown": {"stabilizationWindowSeconds": min(round(limits.down_patience_s), 3600)},
            },
        },
    }
