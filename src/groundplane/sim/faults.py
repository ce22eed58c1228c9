"""What goes wrong in a simulated cluster, how often, and how it is mended.

Rank failures are drawn with each start (`seconds_to_rank_failure`), all others are planned here on the
agenda: nodes that are silent for a while, nodes that die, are seen, fenced and repaired, and the control
plane's death.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from groundplane.control.actions import RankPlacement
from groundplane.control.events import AnyEvent, NodeBack, NodeFenced, NodeJoined, NodeSilent
from groundplane.sim.agenda import FIRST, Agenda
from groundplane.sim.engine import SimEngine
from groundplane.spec.reliability import ReliabilitySpec

S = 1_000_000_000
DAY_S = 86_400.0


@dataclass(frozen=True)
class FaultRates:
    """How often things fail, and how long they stay so, in the mean; all are exponential.

    By itself: node failures 6.5 per 1,000 node-days, RSC-1 in "Revisiting Reliability in Large-Scale Machine
    Learning Research Clusters" (arXiv:2410.21680); rank failures 22 % of 419 interruptions of 16,384 devices
    in 54 days, "The Llama 3 Herd of Models" (arXiv:2407.21783). The others are assumed. `of` takes those that
    the catalogue or a file states.
    """

    ranks_per_device_day: float = 0.22 * 419 / (16_384 * 54)
    nodes_per_node_day: float = 6.5 / 1000
    silences_per_node_day: float = 10 / 1000
    control_planes_per_day: float = 1.0
    mean_silence_s: float = 120.0
    mean_repair_s: float = 4 * 3600.0
    seen_after_s: float = 30.0
    fenced_after_s: float = 120.0
    control_plane_back_after_s: float = 5.0
    slow_node_share: float = 0.0
    slow_node_factor: float = 1.0

    @staticmethod
    def of(spec: ReliabilitySpec) -> FaultRates:
        """The rates of a description."""
        return FaultRates(
            ranks_per_device_day=spec.rank_failures_per_device_day,
            nodes_per_node_day=spec.hardware_failures_per_node_day,
            silences_per_node_day=spec.silences_per_node_day,
            control_planes_per_day=spec.control_plane_deaths_per_day,
            mean_silence_s=spec.silence_s,
            mean_repair_s=spec.repair_s,
            seen_after_s=spec.detection_s,
            fenced_after_s=spec.fencing_s,
            control_plane_back_after_s=spec.control_plane_back_s,
            slow_node_share=spec.slow_node_share,
            slow_node_factor=spec.slow_node_factor,
        )

    def scaled(self, factor: float) -> FaultRates:
        """The same misfortunes, `factor` times as often."""
        return replace(
            self,
            ranks_per_device_day=self.ranks_per_device_day * factor,
            nodes_per_node_day=self.nodes_per_node_day * factor,
            silences_per_node_day=self.silences_per_node_day * factor,
            control_planes_per_day=self.control_planes_per_day * factor,
        )


class Faults:
    """Plans misfortunes one after the other, without end.

    Args:
        agenda: simulated time.
        engine: the nodes that suffer.
        rates: how often.
        random: picks moments and victims.
        give: hands news of a node to the control plane, now or when it is up again.
        kill: ends the control plane; it is called again for the restart.
        offer: what a node says when it joins with a boot number.
    """

    def __init__(
        self,
        agenda: Agenda,
        engine: SimEngine,
        rates: FaultRates,
        random: np.random.Generator,
        *,
        give: Callable[[AnyEvent], None],
        kill: Callable[[], None],
        restart: Callable[[], None],
        offer: Callable[[str, int], NodeJoined],
        reachable: Callable[[str], None],
    ) -> None:
        self.counts = {"rank failures": 0, "node failures": 0, "node silences": 0, "control plane deaths": 0}
        self._agenda = agenda
        self._engine = engine
        self._rates = rates
        self._random = random
        self._give = give
        self._kill = kill
        self._restart = restart
        self._offer = offer
        self._reachable = reachable
        num_nodes = len(engine.nodes)
        num_slow = round(rates.slow_node_share * num_nodes)
        names = list(engine.nodes)
        chosen = random.permutation(num_nodes)[:num_slow] if num_slow else ()
        self._slow_nodes = frozenset(names[int(index)] for index in chosen)
        self._again(rates.nodes_per_node_day * num_nodes, self._node_dies)
        self._again(rates.silences_per_node_day * num_nodes, self._node_falls_silent)
        self._again(rates.control_planes_per_day, self._control_plane_dies)

    def seconds_to_rank_failure(self, num_devices: int) -> float:
        """When the first rank of a gang would fail by itself."""
        per_day = self._rates.ranks_per_device_day * num_devices
        return float(self._random.exponential(DAY_S / per_day)) if per_day > 0 else float("inf")

    def slowdown(self, placement: tuple[RankPlacement, ...]) -> float:
        """How many times as long a gang takes for the slow nodes in it: as long as the slowest."""
        is_slow = any(rank.node_id in self._slow_nodes for rank in placement)
        return self._rates.slow_node_factor if is_slow else 1.0

    def _again(self, per_day: float, deed: Callable[[], None]) -> None:
        """Plans the next occurrence, which plans the one after it."""
        if per_day <= 0:
            return

        def happen() -> None:
            deed()
            self._again(per_day, deed)

        self._after(float(self._random.exponential(DAY_S / per_day)), happen)

    def _after(self, delay_s: float, deed: Callable[[], None]) -> None:
        self._agenda.after(int(delay_s * S), deed, FIRST)

    def _any_node(self) -> str:
        names = list(self._engine.nodes)
        return names[int(self._random.integers(len(names)))]

    def _node_dies(self) -> None:
        node = self._engine.nodes[self._any_node()]
        if not node.is_powered:
            return
        self.counts["node failures"] += 1
        self._engine.power_off(node.node_id)
        rates = self._rates
        self._after(rates.seen_after_s, partial(self._give, NodeSilent(node.node_id)))
        self._after(rates.fenced_after_s, partial(self._fence, node.node_id, node.boot))
        repair_s = rates.fenced_after_s + float(self._random.exponential(rates.mean_repair_s))
        self._after(repair_s, partial(self._repaired, node.node_id))

    def _fence(self, node_id: str, boot: int) -> None:
        self._engine.prove_dead(node_id)
        self._give(NodeFenced(node_id, boot))

    def _repaired(self, node_id: str) -> None:
        self._engine.power_on(node_id)
        self._give(self._offer(node_id, self._engine.nodes[node_id].boot))

    def _node_falls_silent(self) -> None:
        node = self._engine.nodes[self._any_node()]
        if not node.is_powered or not node.is_reachable:
            return
        self.counts["node silences"] += 1
        node.is_reachable = False
        silence_s = float(self._random.exponential(self._rates.mean_silence_s))
        if silence_s > self._rates.seen_after_s:
            self._after(self._rates.seen_after_s, partial(self._give, NodeSilent(node.node_id)))
        self._after(silence_s, partial(self._heard, node.node_id))

    def _heard(self, node_id: str) -> None:
        node = self._engine.nodes[node_id]
        node.is_reachable = True
        self._reachable(node_id)
        if node.is_powered:
            self._give(NodeBack(node_id))

    def _control_plane_dies(self) -> None:
        self.counts["control plane deaths"] += 1
        self._kill()
        self._after(self._rates.control_plane_back_after_s, self._restart)
