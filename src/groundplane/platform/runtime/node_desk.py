"""What an operator can ask of nodes: cordon, drain, open again, and by which rules. Knows no HTTP."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from groundplane.control import events as ev
from groundplane.control.policy import health_event, policy_event
from groundplane.control.views import NodeView, node_view, node_views
from groundplane.platform.runtime.driver import Driver
from groundplane.platform.runtime.job_desk import MissingError
from groundplane.spec.errors import InputError, nearest_name
from groundplane.spec.health import HealthSpec
from groundplane.spec.policy import PolicySpec
from groundplane.spec.quantity import Seconds

CHANGES: Final = ("cordon", "uncordon", "drain")


class DrainRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """How long works may take to leave the node by themselves; none given: as long as they like."""

    wait_s: Seconds | None = None


class Rules(Struct, frozen=True):
    """The rules that the core follows now, as it counts them."""

    policy: ev.PolicySet
    health: ev.HealthSet | None


class NodeDesk:
    """Nodes of one platform, and the rules for queues and nodes.

    Args:
        driver: takes events.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def change(self, node_id: str, change: str, wait_s: float | None = None) -> list[NodeView]:
        """Takes a node out of placement (`cordon`), empties it (`drain`), or opens it again (`uncordon`).

        Raises:
            MissingError: no such node or change.
        """
        self.view(node_id)
        event: ev.AnyEvent
        if change == "cordon":
            event = ev.NodeCordoned(node_id=node_id)
        elif change == "uncordon":
            event = ev.NodeUncordoned(node_id=node_id)
        elif change == "drain":
            event = ev.NodeDrainRequested(
                node_id=node_id, wait_ns=-1 if wait_s is None else round(wait_s * 1e9)
            )
        else:
            raise MissingError(f"must be one of {', '.join(CHANGES)}", field="change", value=change)
        await self._driver.handle(event)
        return node_views(self._driver.core)

    def view(self, node_id: str) -> NodeView:
        """One node.

        Raises:
            MissingError: no such node.
        """
        view = node_view(self._driver.core, node_id)
        if view is None:
            near = nearest_name(node_id, self._driver.core.state.nodes)
            raise MissingError("no such node", field="node", value=node_id, nearest=near)
        return view

    async def set_policy(self, spec: PolicySpec) -> Rules:
        """Other rules for queues; what runs goes on.

        Raises:
            InputError: a queue that the core cannot take.
        """
        await self._driver.handle(policy_event(spec))
        return self.rules()

    async def set_health(self, spec: HealthSpec) -> Rules:
        """Other rules for nodes.

        Raises:
            InputError: spares of a kind that no node offers.
        """
        kinds = dict.fromkeys(node.device_kind for node in self._driver.core.state.nodes.values())
        for kind in spec.spares:
            if kind not in kinds:
                near = nearest_name(kind, kinds)
                raise InputError(
                    "no node offers this kind of device", field="spares", value=kind, nearest=near
                )
        await self._driver.handle(health_event(spec))
        return self.rules()

    def rules(self) -> Rules:
        """The rules that hold now."""
        state = self._driver.core.state
        policy = ev.PolicySet(tuple(state.queues.values()), state.half_life_ns, state.order, state.preemption)
        return Rules(policy, state.health)
