"""Routes for nodes, for the rules of queues and nodes, and for why anything waits. Thin, as `routes.py`."""

from __future__ import annotations

from typing import Any, Final

from litestar import Request, get, post, put
from litestar.datastructures import State
from litestar.params import FromPath
from msgspec import Struct

from groundplane.control.explain_service import ServiceExplanation, explain_service
from groundplane.control.views import NodeView, node_views
from groundplane.platform.runtime.driver import Driver
from groundplane.platform.runtime.http import needs, read_body
from groundplane.platform.runtime.identity import Key
from groundplane.platform.runtime.job_desk import Explanation, JobDesk, MissingError
from groundplane.platform.runtime.node_desk import DrainRequest, NodeDesk, Rules
from groundplane.platform.runtime.operation import body_operation
from groundplane.platform.runtime.service_desk import Service, ServiceDesk
from groundplane.spec.errors import nearest_name
from groundplane.spec.health import HealthSpec
from groundplane.spec.policy import PolicySpec


class AnyExplanation(Struct, frozen=True):
    """What becomes of the one thing that has this name: a job, a service, or a node."""

    job: Explanation | None = None
    service: Service | None = None
    decision: ServiceExplanation | None = None
    node: NodeView | None = None


@get("/nodes", sync_to_thread=False)
def list_nodes(state: State) -> list[NodeView]:
    """Nodes, their devices, and which work holds each."""
    driver: Driver = state.driver
    return node_views(driver.core)


@post(
    "/nodes/{node_id:str}/{change:str}",
    guards=[needs("admin")],
    status_code=200,
    operation_class=body_operation(DrainRequest),
)
async def change_node(
    node_id: FromPath[str], change: FromPath[str], request: Request[Key, Any, State], state: State
) -> list[NodeView]:
    """Takes a node out of placement (`cordon`), empties it (`drain`), or opens it again (`uncordon`)."""
    has_body = change == "drain" and bool(await request.body())
    wanted = await read_body(request, DrainRequest) if has_body else DrainRequest()
    return await NodeDesk(state.driver).change(node_id, change, wanted.wait_s)


@get("/rules", sync_to_thread=False)
def read_rules(state: State) -> Rules:
    """The rules for queues and nodes that hold now."""
    return NodeDesk(state.driver).rules()


@put("/rules/policy", guards=[needs("admin")], operation_class=body_operation(PolicySpec))
async def set_policy(request: Request[Key, Any, State], state: State) -> Rules:
    """Sets the rules for queues; works that run go on."""
    return await NodeDesk(state.driver).set_policy(await read_body(request, PolicySpec))


@put("/rules/health", guards=[needs("admin")], operation_class=body_operation(HealthSpec))
async def set_health(request: Request[Key, Any, State], state: State) -> Rules:
    """Sets the rules for nodes that fail."""
    return await NodeDesk(state.driver).set_health(await read_body(request, HealthSpec))


@get("/explain/{name:str}")
async def explain_anything(name: FromPath[str], state: State) -> AnyExplanation:
    """Why a job, a service or a node is as it is."""
    jobs: JobDesk = state.jobs
    services: ServiceDesk = state.services
    driver: Driver = state.driver
    core = driver.core.state
    if name in core.nodes:
        return AnyExplanation(node=NodeDesk(driver).view(name))
    try:
        return AnyExplanation(job=await jobs.explain(name))
    except MissingError:
        if not any(each.name == name for each in await services.list_services()):
            names = [*core.jobs, *(job.name for job in core.jobs.values()), *core.services, *core.nodes]
            near = nearest_name(name, names)
            raise MissingError("no such job, service or node", value=name, nearest=near) from None
    service = await services.view(name)
    return AnyExplanation(service=service, decision=explain_service(driver.core, name, driver.now_ns()))


NODE_HANDLERS: Final = [list_nodes, change_node, read_rules, set_policy, set_health, explain_anything]
