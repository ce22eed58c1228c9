"""A model service as a person writes it: which model, how many replicas, which server runs it."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from groundplane.spec.device import ANY_DEVICE, DeviceSpec, check_part
from groundplane.spec.errors import InputError
from groundplane.spec.job import RestartSpec
from groundplane.spec.quantity import Bytes, Name, PositiveInt, Seconds

MAX_REPLICAS = 10_000
Replicas = Annotated[int, Meta(ge=0, le=MAX_REPLICAS)]


class ServiceSpec(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="service"):
    """One service behind the gateway, under the model name `name`.

    `model` names a registered model ("tour-model" or "tour-model:3") or a GGUF file. With server "openai"
    nothing is started: `url` is the base of an OpenAI-compatible server that someone else runs. A replica
    that was ready and has not answered for `unready_limit` is replaced (0: never).
    """

    name: Name
    model: str = ""
    server: Literal["llamacpp", "vllm", "openai"] = "llamacpp"
    url: str = ""
    replicas: Replicas = 1
    devices_per_replica: PositiveInt = 1
    memory_per_replica_bytes: Bytes = msgspec.field(default=1 << 30, name="memory_per_replica")
    context: PositiveInt = 2048
    slots: PositiveInt = 4
    queue: Name = "default"
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 100
    restart: RestartSpec = RestartSpec(budget=1000)
    drain_s: Seconds = msgspec.field(default=30.0, name="drain")
    device: DeviceSpec = ANY_DEVICE
    unready_limit_s: Seconds = msgspec.field(default=60.0, name="unready_limit")

    def __post_init__(self) -> None:
        check_part(self.device, 1, self.devices_per_replica, "devices_per_replica")
        if self.server == "openai" and not self.url:
            raise InputError("is required when server is openai", field="url")
        if self.server != "openai" and not self.model:
            raise InputError(f"is required when server is {self.server}", field="model")
