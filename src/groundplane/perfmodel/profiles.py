"""Software stacks as the model sees them: facts about what a stack does, and a handful of fitted numbers.

Every number is physics that a profiler could show: how much of a kernel's benchmark rate is held over a
step, what a layer's host code takes, how much communication hides. Nothing is per model or per measurement.
The fitted values lie in `catalog/calibration/training.json` with the manifest of what they were fitted to.
"""

from __future__ import annotations

import functools
from importlib import resources

import msgspec
from msgspec import Struct

from groundplane.perfmodel.evidence import Evidence
from groundplane.spec.errors import unknown_name
from groundplane.spec.load import load


class StackProfile(Struct, frozen=True, forbid_unknown_fields=True):
    """One software stack.

    Facts:
        fused_attention: attention never stores scores (FlashAttention and its kin).
        fused_loss: the cross entropy never stores logits in float32.
        overlaps_backward: gradients are reduced while the backward pass runs.
        gathers_ahead: sharded weights are gathered while the layer before computes.
        balances_stages: embedding and head count as work when layers are dealt to pipeline stages.
        gradient_bytes: of one gradient element, as reduced.
        gathers_in_fp32: sharded weights travel as float32.
        ties_tensor_backward: tensor-parallel reductions of the backward pass run beside weight gradients.
        slow_gathers: in jobs over several nodes `hop_s` is spent for tensor groups within a node too.
        stalls_in_pipelines: `stall_s` is spent where there is a pipeline only.
        overlaps_experts: tokens travel to experts in other scale-up domains while another micro-batch
            computes.
        balances_ring: ranks of context parallelism hold a front and a back piece: causal work is even.
        selective_linears: share of the linear layers that selective recompute computes again, with all
            memory-bound operators; 0 where it means the attention core only.

    Fitted (see `FITTED`):
        sustained: share of a kernel's benchmark rate that is held over a step (clocks under load, cold
            caches, gaps between kernels).
        scaled_rate: speed of the stack's fp8 and fp4 products relative to those of the inference libraries
            that kernels were timed with.
        small_share: as `sustained`, for memory-bound operators against the streaming rate.
        hidden_passes: reads or writes of the hidden state per layer and pass beyond those of fused kernels.
        host_s_per_operator: host time to launch one operator of the forward pass.
        step_overhead_s: what a step costs once: batch, loss to the host, logging, optimizer's bookkeeping.
        stall_s: seconds that each micro-batch stands still whatever its size.
        hop_s: host time that each rank of a tensor group that spans nodes adds to a collective.
        link_share: share of the benchmarked speed of collectives that is reached beside computing.
        exposed_share: share of overlapped communication that shows all the same, as compute slowed by it.
        optimizer_passes: reads or writes of a float32 word per parameter of the rank in an optimizer step.
    """

    name: str
    fused_attention: bool = True
    fused_loss: bool = False
    overlaps_backward: bool = True
    gathers_ahead: bool = True
    balances_stages: bool = False
    gradient_bytes: float = 4.0
    gathers_in_fp32: bool = False
    ties_tensor_backward: bool = False
    slow_gathers: bool = False
    stalls_in_pipelines: bool = False
    overlaps_experts: bool = False
    balances_ring: bool = True
    selective_linears: float = 0.0
    sustained: float = 0.93
    scaled_rate: float = 1.0
    small_share: float = 0.9
    hidden_passes: float = 2.0
    host_s_per_operator: float = 8e-6
    step_overhead_s: float = 5e-3
    stall_s: float = 1e-3
    hop_s: float = 1e-5
    link_share: float = 0.85
    exposed_share: float = 0.2
    optimizer_passes: float = 10.0


FITTED = (
    "sustained",
    "scaled_rate",
    "small_share",
    "hidden_passes",
    "host_s_per_operator",
    "step_overhead_s",
    "stall_s",
    "hop_s",
    "link_share",
    "exposed_share",
    "optimizer_passes",
)
"""The parameters that a fit may move; the rest are facts."""

FACTS = tuple(name for name in StackProfile.__struct_fields__ if name not in (*FITTED, "name"))
"""What a stack does, whatever its numbers."""


class TrainingCalibration(Struct, frozen=True, forbid_unknown_fields=True):
    """The calibration file of training.

    Attributes:
        source: what it was fitted to.
        profiles: one a stack.
        spreads: residuals on folds that the fit had not seen, by stack; "STACK, inferred" for runs that leave
            something open, "any" and "any, inferred" for stacks with too few runs; each also with
            ", one server" or ", several servers" behind it where there are enough runs of both.
        without_source: the profile of its stack fitted without a source, by source.
    """

    source: str
    profiles: tuple[StackProfile, ...]
    spreads: dict[str, Evidence]
    without_source: dict[str, StackProfile]

    def by_name(self) -> dict[str, StackProfile]:
        """Profiles by name."""
        return {profile.name: profile for profile in self.profiles}

    def spread_of(self, stack: str, *, complete: bool = True, several_servers: bool) -> Evidence:
        """The residuals that stand for a stack, or for the one it is a variant of (NAME-VARIANT).

        Args:
            stack: its name.
            complete: whether all of a run is stated.
            several_servers: whether it spans servers, where times scatter more.
        """
        suffix = "" if complete else ", inferred"
        where = ", several servers" if several_servers else ", one server"
        known = [name for name in self.by_name() if f"{stack}-".startswith(f"{name}-")]
        for name in (*sorted(known, key=len, reverse=True), "any"):
            found = self.spreads.get(name + suffix + where) or self.spreads.get(name + suffix)
            if found is not None:
                return found
        return self.spreads["any" + suffix]


@functools.cache
def training_calibration() -> TrainingCalibration:
    """The shipped calibration."""
    text = resources.files("groundplane.catalog").joinpath("calibration", "training.json").read_bytes()
    return msgspec.json.decode(text, type=TrainingCalibration)


def stack_profile(name_or_file: str) -> StackProfile:
    """The profile of a stack, by name or from a file that `groundplane calibrate` wrote.

    Raises:
        InputError: unknown name (with the nearest), or anything wrong in the file.
    """
    if name_or_file.endswith((".yaml", ".yml", ".toml", ".json")):
        return load(name_or_file, StackProfile)
    profiles = training_calibration().by_name()
    if name_or_file not in profiles:
        raise unknown_name("software stack", name_or_file, profiles)
    return profiles[name_or_file]
