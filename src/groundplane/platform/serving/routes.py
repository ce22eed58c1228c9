"""What serving adds to the control plane's HTTP API: registered models and used tokens."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated, Any

from litestar import Request, Router, get, post
from litestar.datastructures import State
from litestar.params import FromPath, QueryParameter
from msgspec import Struct

from groundplane.platform.runtime.http import authenticate, needs, read_body
from groundplane.platform.runtime.identity import Key
from groundplane.platform.runtime.operation import body_operation
from groundplane.platform.serving import registry
from groundplane.platform.serving.registry import Lineage, ModelVersion
from groundplane.platform.serving.usage import UsageSum, sum_usage
from groundplane.spec.errors import InputError
from groundplane.spec.quantity import Count, Name


class RegisterRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """A model to register: from a file or folder on the platform's machine, or, without `path`, packaged."""

    name: Name
    path: str = ""
    job_id: str = ""
    checkpoint_step: Count | None = None
    data_id: str = ""


@get("/models")
async def list_models(state: State) -> list[ModelVersion]:
    """All versions, by name, newest first."""
    return await asyncio.to_thread(registry.list_versions, state.database)


@get("/models/{reference:str}")
async def show_model(reference: FromPath[str], state: State) -> ModelVersion:
    """One version: `name` (the newest) or `name:3`."""
    return await asyncio.to_thread(registry.find, state.database, reference)


@post("/models", guards=[needs("member")], operation_class=body_operation(RegisterRequest))
async def register_model(request: Request[Key, Any, State], state: State) -> ModelVersion:
    """Registers a GGUF file, or a folder with one in it; the same content twice is one version."""
    wanted = await read_body(request, RegisterRequest)
    now_ns = time.time_ns()
    if not wanted.path:
        return await asyncio.to_thread(
            registry.register_packaged, state.state_dir, state.database, wanted.name, now_ns
        )
    if not Path(wanted.path).is_absolute():
        raise InputError("must be an absolute path", field="path", value=wanted.path)
    return await asyncio.to_thread(
        registry.register,
        state.state_dir,
        state.database,
        wanted.name,
        Path(wanted.path),
        now_ns,
        Lineage(wanted.job_id, wanted.checkpoint_step, wanted.data_id),
    )


@get("/usage")
async def list_usage(
    request: Request[Key, Any, State],
    state: State,
    by: Annotated[str, QueryParameter(description="project, key, model or day")] = "project",
    day: Annotated[str | None, QueryParameter(pattern=r"^\d{4}-\d{2}-\d{2}$")] = None,
) -> list[UsageSum]:
    """Requests and tokens, summed. An administrator sees all projects, others their own."""
    project = None if request.user.may("admin") else request.user.project
    return await asyncio.to_thread(sum_usage, state.database, by, project=project, day=day)


router = Router(
    "/api", route_handlers=[list_models, show_model, register_model, list_usage], guards=[authenticate]
)
