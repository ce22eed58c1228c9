"""Who is served next among queues, and who has had all that it may have. Integers only.

Queues form a tree below an unnamed root. At each level the sibling goes first that still has some of its
guarantee left, then the one with the smaller weighted dominant share: of all device kinds and memory, the
largest part of the cluster that its works hold, averaged with the decayed past, over its weight
(dominant-resource fairness, Ghodsi et al., NSDI 2011). A queue that nobody configured is a child of the root
with weight 1, no guarantee and no limit. Without any policy there is one order over all that waits.

The past is an exponential average of the dominant share with the policy's half-life, kept in steps of a
1,024th of it, so that neither how often it is read nor how often it changes can alter what it comes to.
"""

from __future__ import annotations

from math import isqrt

from groundplane.control.events import UNITS_PER_DEVICE, Gang, PolicySet
from groundplane.control.state import CoreState, QueueUsage, Work

ROOT = ""
SHARE_ONE = 1 << 30
"""The whole cluster, as a share."""
MEMORY = "memory"
"""The resource beside the device kinds; no kind can have its name, since it is counted apart."""
_STEPS = 1024
_DECAY_BITS = 64

_FOR_EVER_NS = 1 << 126

LevelKey = tuple[bool, int, str]


class Shares:
    """Usage and order of the queues in `state`."""

    def __init__(self, state: CoreState) -> None:
        self._state = state
        self._decay = _decay_table()
        self._paths: dict[str, list[str]] = {}
        self._has_guarantees = any(rule.guaranteed_devices for rule in state.queues.values())
        self._borrowed: dict[str, int] = {}
        self._forks: dict[tuple[str, str], tuple[str, str]] = {}
        self._level_keys: dict[str, tuple[LevelKey, int]] = {}
        self._totals: dict[str, int] = {}
        self._total_bytes = 0
        for node in state.nodes.values():
            self.node_joined(node.device_kind, node.num_devices, node.memory_bytes)

    def node_joined(self, device_kind: str, num_devices: int, memory_bytes: int) -> None:
        """The cluster has grown: what all shares are shares of."""
        self._totals[device_kind] = self._totals.get(device_kind, 0) + num_devices
        self._total_bytes += memory_bytes
        self._level_keys.clear()

    def leaf_of(self, queue: str) -> str:
        """The queue whose order an entry of `queue` waits in: the one order of all where no policy is set."""
        return queue if self._state.queues else ROOT

    def set_policy(self, policy: PolicySet) -> None:
        """Takes over new rules. What is held now is counted anew, the past of a queue stays with its name."""
        state = self._state
        before = state.usage
        for name in before:
            self._settle(name)
        state.queues = {rule.queue_id: rule for rule in policy.queues}
        self._has_guarantees = any(rule.guaranteed_devices for rule in policy.queues)
        state.half_life_ns = policy.half_life_ns
        state.order = policy.order
        state.preemption = policy.preemption
        state.usage = {}
        self._paths.clear()
        self._borrowed.clear()
        self._forks.clear()
        self._level_keys.clear()
        for work in state.works.values():
            if work.placement:
                self.add(work)
        for name, usage in before.items():
            if usage.average:
                self._usage(name).average = usage.average

    def add(self, work: Work) -> None:
        """A work holds devices now."""
        self._change(work, 1)

    def subtract(self, work: Work) -> None:
        """A work holds nothing any more."""
        self._change(work, -1)

    def limit_reached(self, queue: str, gang: Gang) -> str | None:
        """The queue on the way to the root whose limit the gang would pass, if there is one."""
        part_units = 0 if gang.part is None else gang.part.units
        need = 0 if part_units else gang.num_ranks * gang.devices_per_rank
        for name in self.path(queue):
            rule = self._state.queues.get(name)
            if rule is not None and rule.limit_devices >= 0:
                usage = self._state.usage.get(name)
                held = 0 if usage is None else usage.num_devices
                if part_units or (usage is not None and usage.units):
                    units = part_units + (0 if usage is None else sum(usage.units.values()))
                    held += -(-units // UNITS_PER_DEVICE)
                if need + held > rule.limit_devices:
                    return name
        return None

    def weighted_share(self, name: str) -> int:
        """The mean of present and past dominant share over the weight, in units of 1 / `SHARE_ONE`."""
        usage = self._state.usage.get(name)
        if usage is None:
            return 0
        self._settle(name)
        rule = self._state.queues.get(name)
        both = self._dominant(usage) + (usage.average if self._state.half_life_ns else 0)
        return both // (2 * (1 if rule is None else rule.weight))

    def num_borrowed(self, name: str) -> int:
        """Devices that a queue and those below it hold beyond its guarantee; negative below it."""
        borrowed = self._borrowed.get(name)
        if borrowed is None:
            rule = self._state.queues.get(name)
            borrowed = self.num_held(name) - (0 if rule is None else rule.guaranteed_devices)
            self._borrowed[name] = borrowed
        return borrowed

    def num_held(self, name: str) -> int:
        """Devices that a queue and those below it hold; all parts together are rounded up."""
        usage = self._state.usage.get(name)
        if usage is None:
            return 0
        if not usage.units:
            return usage.num_devices
        return usage.num_devices - (-sum(usage.units.values()) // UNITS_PER_DEVICE)

    def is_owed(self, leaf: str, beside: str) -> bool:
        """Whether a queue has some of its guarantee left, as the other, where their ways part, has not."""
        if not self._has_guarantees:
            return False
        fork = self._forks.get((leaf, beside))
        if fork is None:
            pairs = zip(reversed(self.path(leaf)), reversed(self.path(beside)), strict=False)
            fork = next(((mine, other) for mine, other in pairs if mine != other), (ROOT, ROOT))
            self._forks[leaf, beside] = fork
        return fork[0] != ROOT and self.num_borrowed(fork[0]) < 0 <= self.num_borrowed(fork[1])

    def level_key(self, name: str) -> LevelKey:
        """Sorts the queues below one parent in the order in which they are served.

        Kept until what the queue holds changes, or the next step of its past is due.
        """
        kept = self._level_keys.get(name)
        if kept is not None and self._state.now_ns < kept[1]:
            return kept[0]
        rule, usage = self._state.queues.get(name), self._state.usage.get(name)
        guaranteed = 0 if rule is None else rule.guaranteed_devices
        key = (self.num_held(name) >= guaranteed, self.weighted_share(name), name)
        step_ns = self._state.half_life_ns // _STEPS
        valid_ns = _FOR_EVER_NS if usage is None or step_ns == 0 else usage.since_ns + step_ns
        self._level_keys[name] = (key, valid_ns)
        return key

    def path(self, queue: str) -> list[str]:
        """The queue and those above it, without the root."""
        path = self._paths.get(queue)
        if path is None:
            path, name = [], queue
            while name != ROOT:
                path.append(name)
                name = self.parent_of(name)
            self._paths[queue] = path
        return path

    def parent_of(self, queue: str) -> str:
        """The queue above one that is not the root."""
        rule = self._state.queues.get(queue)
        return ROOT if rule is None else rule.parent

    def _change(self, work: Work, sign: int) -> None:
        state = self._state
        if not state.queues:
            return
        gang = work.gang
        num_devices = 0 if gang.part is not None else sign * gang.num_ranks * gang.devices_per_rank
        kind = state.nodes[work.placement[0].node_id].device_kind
        for name in self.path(work.queue):
            self._level_keys.pop(name, None)
            self._borrowed.pop(name, None)
            usage = self._usage(name)
            self._settle(name)
            usage.num_devices += num_devices
            usage.devices[kind] = usage.devices.get(kind, 0) + num_devices
            if gang.part is not None:
                usage.units[kind] = usage.units.get(kind, 0) + sign * gang.part.units
            usage.memory_bytes += sign * gang.num_ranks * gang.memory_bytes_per_rank

    def _usage(self, name: str) -> QueueUsage:
        usage = self._state.usage.get(name)
        if usage is None:
            usage = self._state.usage[name] = QueueUsage(since_ns=self._state.now_ns)
        return usage

    def _dominant(self, usage: QueueUsage) -> int:
        share = usage.memory_bytes * SHARE_ONE // max(1, self._total_bytes)
        for kind, num_devices in usage.devices.items():
            units = num_devices * UNITS_PER_DEVICE + usage.units.get(kind, 0)
            share = max(share, units * SHARE_ONE // (self._totals[kind] * UNITS_PER_DEVICE))
        return share

    def _settle(self, name: str) -> None:
        """Brings a queue's average up to now: it moves to its share by 1 - 2**(-elapsed / half-life)."""
        usage, step_ns = self._state.usage[name], self._state.half_life_ns // _STEPS
        if step_ns == 0:
            return
        steps = (self._state.now_ns - usage.since_ns) // step_ns
        if steps > 0:
            usage.since_ns += steps * step_ns
            share = self._dominant(usage)
            half_lives, rest = divmod(steps, _STEPS)
            left = (usage.average - share) * self._decay[rest] >> (_DECAY_BITS + min(half_lives, 1 << 10))
            usage.average = share + left


def _decay_table() -> list[int]:
    """2**(-i / 1024) for i < 1024 as fixed-point numbers, by ten integer square roots of one half."""
    one = 1 << _DECAY_BITS
    root = one >> 1
    for _ in range(_STEPS.bit_length() - 1):
        root = isqrt(root << _DECAY_BITS)
    table = [one]
    for _ in range(_STEPS - 1):
        table.append(table[-1] * root >> _DECAY_BITS)
    return table
