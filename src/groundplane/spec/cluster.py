"""A cluster as a person describes it: chip, server, fabric, storage, and what was measured on them.

Every struct here is complete: names of the catalogue ("server: dgx-h100") are replaced by what they stand
for before one is built, by `groundplane.catalog.resolve_cluster`. Peaks are dense (no structured sparsity);
bandwidths are for one direction unless the name says otherwise. Knows nothing of performance formulas.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import msgspec
from msgspec import Struct

from groundplane.spec.errors import InputError, unknown_name
from groundplane.spec.quantity import (
    Bytes,
    BytesPerSecond,
    Count,
    FlopsPerSecond,
    Name,
    PositiveInt,
    Seconds,
    Watts,
)
from groundplane.spec.topology import TopologyFile

DTYPES: Final = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4", "int8")
"""Number formats that a chip may have a peak for."""

Collective = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv", "barrier"
]
Topology = Literal["rail-optimised", "fat-tree", "dragonfly", "torus", "single-domain", "loopback"]
LinkKind = Literal["infiniband", "roce", "ethernet", "efa", "slingshot", "ici", "nvlink", "ub", "loopback"]


class MatmulPoint(Struct, frozen=True, forbid_unknown_fields=True):
    """One timed matrix product, [m, k] x [k, n] -> [m, n]; `processes` ran it at the same time."""

    dtype: str
    m: PositiveInt
    n: PositiveInt
    k: PositiveInt
    time_s: Seconds = msgspec.field(name="time")
    processes: PositiveInt = 1
    which: Literal["forward", "data_gradient", "weight_gradient"] = "forward"


class AttentionPoint(Struct, frozen=True, forbid_unknown_fields=True):
    """One timed causal attention of `batch` sequences, without its projections."""

    dtype: str
    batch: PositiveInt
    seq: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    head_dim: PositiveInt
    forward_s: Seconds = msgspec.field(name="forward")
    backward_s: Seconds = msgspec.field(name="backward")
    processes: PositiveInt = 1


class OperatorPoint(Struct, frozen=True, forbid_unknown_fields=True):
    """One timed operator of a training framework, no product or attention, by its output elements."""

    operation: str
    dtype: str
    elements: PositiveInt
    forward_s: Seconds = msgspec.field(name="forward")
    backward_s: Seconds = msgspec.field(default=0.0, name="backward")
    processes: PositiveInt = 1


class BandwidthPoint(Struct, frozen=True, forbid_unknown_fields=True):
    """Memory bandwidth of one process over a working set; bytes read and written both count."""

    working_set_bytes: Bytes = msgspec.field(name="working_set")
    bandwidth_bytes_per_s: BytesPerSecond = msgspec.field(name="bandwidth")
    operation: str = "copy"
    processes: PositiveInt = 1


class OverheadPoint(Struct, frozen=True, forbid_unknown_fields=True):
    """Time of one small operation, where launch and bookkeeping are all there is."""

    operation: str
    time_s: Seconds = msgspec.field(name="time")
    processes: PositiveInt = 1


class CollectivePoint(Struct, frozen=True, forbid_unknown_fields=True):
    """One timed collective; `size` is the whole buffer of one rank, as nccl-tests count it."""

    operation: Collective
    size_bytes: Bytes = msgspec.field(name="size")
    ranks: PositiveInt
    time_s: Seconds = msgspec.field(name="time")
    nodes: PositiveInt = 1


class MeasuredChip(Struct, frozen=True, forbid_unknown_fields=True):
    """What `groundplane probe` found on a real chip. Points only; curves are made in `perfmodel`."""

    matmuls: tuple[MatmulPoint, ...] = ()
    bandwidths: tuple[BandwidthPoint, ...] = ()
    overheads: tuple[OverheadPoint, ...] = ()
    attentions: tuple[AttentionPoint, ...] = ()
    operators: tuple[OperatorPoint, ...] = ()
    software: dict[str, str] = {}


class PartitionSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One way to cut a chip in hardware (a MIG profile): an instance of some compute and memory slices.

    `starts` are the memory slices at which an instance may begin. All instances of a chip together have no
    memory slice twice, and of this profile at most `max_instances` (none given: as many as find room).
    """

    name: str
    compute_slices: PositiveInt
    memory_slices: PositiveInt
    starts: tuple[Count, ...]
    max_instances: PositiveInt | None = None


class ChipSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One accelerator (or CPU socket) as one rank sees it.

    `scaleup` is the chip's injection bandwidth into its scale-up fabric (NVLink, xGMI, ICI), one direction;
    None where the chip has none beyond PCIe. `scaleup_per_peer` is what one pair of chips can use of it where
    chips are wired to each other and not to a switch (None: all of it). `partitions` are the ways in which
    the chip can be cut in hardware; none where it cannot. `sources` says where each field comes
    from; the key "*" stands for all fields not named, "notes" for remarks such as sources that disagree.
    """

    name: Name
    vendor: str
    kind: Literal["gpu", "tpu", "npu", "cpu"]
    peak_flops_per_s: dict[str, FlopsPerSecond] = msgspec.field(name="peak")
    memory_bytes: Bytes = msgspec.field(name="memory")
    memory_bytes_per_s: BytesPerSecond = msgspec.field(name="memory_bandwidth")
    release_year: int | None = None
    memory_kind: str = ""
    l2_bytes: Bytes = msgspec.field(default=0, name="l2")
    num_cores: PositiveInt | None = msgspec.field(default=None, name="cores")
    scaleup_bytes_per_s: BytesPerSecond | None = msgspec.field(default=None, name="scaleup")
    scaleup_per_peer_bytes_per_s: BytesPerSecond | None = msgspec.field(default=None, name="scaleup_per_peer")
    scaleup_fabric: str = ""
    pcie_bytes_per_s: BytesPerSecond | None = msgspec.field(default=None, name="pcie")
    tdp_w: Watts | None = msgspec.field(default=None, name="tdp")
    launch_overhead_s: Seconds = msgspec.field(default=4e-6, name="launch_overhead")
    partitions: tuple[PartitionSpec, ...] = ()
    sources: dict[str, str] = {}
    measured: MeasuredChip | None = None

    def __post_init__(self) -> None:
        for dtype in self.peak_flops_per_s:
            if dtype not in DTYPES:
                raise unknown_name("number format", dtype, DTYPES, field="peak")
        if not self.peak_flops_per_s:
            raise InputError("must have the peak of at least one number format", field="peak")
        if self.memory_bytes < 2**20:
            raise InputError(
                "must be at least 1 MiB (a bare number is bytes)", field="memory", value=self.memory_bytes
            )

    def peak(self, dtype: str) -> float:
        """Dense peak in FLOP/s for a number format.

        Formats that the chip lacks run at the rate of the narrowest wider one that can stand in for them
        (bf16 and fp16 for each other; fp8 and fp4 up to bf16; tf32 as fp32).

        Raises:
            InputError: unknown format, or nothing on the chip that can stand in for it.
        """
        if dtype not in _STANDS_IN:
            raise unknown_name("number format", dtype, DTYPES)
        for candidate in _STANDS_IN[dtype]:
            if candidate in self.peak_flops_per_s:
                return self.peak_flops_per_s[candidate]
        raise InputError(f"chip {self.name} has no peak for {dtype} nor for a format like it", field="peak")


_STANDS_IN: Final[dict[str, tuple[str, ...]]] = {
    "fp32": ("fp32",),
    "tf32": ("tf32", "fp32"),
    "fp16": ("fp16", "bf16", "tf32", "fp32"),
    "bf16": ("bf16", "fp16", "tf32", "fp32"),
    "fp8": ("fp8", "bf16", "fp16", "fp32"),
    "fp4": ("fp4", "fp8", "bf16", "fp16", "fp32"),
    "int8": ("int8", "bf16", "fp16", "fp32"),
}


class CardSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One model of network card; `rate` is all its ports together, one direction."""

    name: Name
    kind: LinkKind
    rate_bytes_per_s: BytesPerSecond = msgspec.field(name="rate")
    ports: PositiveInt = 1
    pcie_bytes_per_s: BytesPerSecond | None = msgspec.field(default=None, name="pcie")
    power_w: Watts | None = msgspec.field(default=None, name="power")
    sources: dict[str, str] = {}


class SwitchSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One model of switch: `ports` of `rate` each in one direction, `latency` from port to port."""

    name: Name
    kind: LinkKind
    ports: PositiveInt
    rate_bytes_per_s: BytesPerSecond = msgspec.field(name="rate")
    latency_s: Seconds = msgspec.field(name="latency")
    in_network_reduction: bool = False
    power_w: Watts | None = msgspec.field(default=None, name="power")
    sources: dict[str, str] = {}


class NicSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The network cards of one server: `count` of them, each with `rate` in one direction.

    `model` names a card of the catalogue where it is known.
    """

    count: PositiveInt
    rate_bytes_per_s: BytesPerSecond = msgspec.field(name="rate")
    kind: LinkKind = "infiniband"
    model: str = ""


class DiskSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Local storage of one server, all drives together; `fsync` is one small durable write."""

    read_bytes_per_s: BytesPerSecond = msgspec.field(name="read")
    write_bytes_per_s: BytesPerSecond = msgspec.field(name="write")
    size_bytes: Bytes = msgspec.field(default=0, name="size")
    fsync_s: Seconds = msgspec.field(default=1e-3, name="fsync")


class ServerSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One server: its chips, cards and host.

    `scaleup_size` is the number of chips in one scale-up domain. It equals `num_chips` in an 8-way HGX,
    is larger in a rack-wide domain (72 for NVL72, whose servers are trays of 4) or a pod (TPU), and 1 where
    chips only meet over PCIe or the network. `scaleup_torus` gives the shape of a domain that is a torus, in
    chips; each chip then has two links a dimension, which share the chip's scale-up bandwidth evenly.
    """

    name: Name
    chip: ChipSpec
    num_chips: PositiveInt = msgspec.field(name="chips")
    scaleup_size: PositiveInt
    scaleup_torus: tuple[PositiveInt, ...] = ()
    nics: NicSpec | None = None
    host_cores: PositiveInt | None = None
    host_memory_bytes: Bytes = msgspec.field(default=0, name="host_memory")
    disk: DiskSpec | None = None
    power_w: Watts | None = msgspec.field(default=None, name="power")
    vendor: str = ""
    sources: dict[str, str] = {}

    def __post_init__(self) -> None:
        if self.scaleup_torus and math.prod(self.scaleup_torus) != self.scaleup_size:
            raise InputError(
                f"must multiply to scaleup_size ({self.scaleup_size})",
                field="scaleup_torus",
                value=list(self.scaleup_torus),
            )

    @property
    def nic_bytes_per_s(self) -> float:
        """Injection bandwidth of the whole server into the fabric, one direction; 0 without cards."""
        return 0.0 if self.nics is None else self.nics.count * self.nics.rate_bytes_per_s


class FabricSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The network between servers (or between scale-up domains).

    `latency` is one way between two servers under one leaf, `hop_latency` what each further switch adds.
    `oversubscription` is the ratio of bandwidth below to bandwidth above the leaf switches (1 = none).
    `link` limits a card where the fabric is slower than it. `torus` gives the dimensions in chips.
    """

    kind: LinkKind
    topology: Topology
    latency_s: Seconds = msgspec.field(name="latency")
    hop_latency_s: Seconds = msgspec.field(default=3e-7, name="hop_latency")
    link_bytes_per_s: BytesPerSecond | None = msgspec.field(default=None, name="link")
    oversubscription: float = 1.0
    nodes_per_leaf: PositiveInt | None = None
    rails: PositiveInt = 1
    torus: tuple[PositiveInt, ...] = ()
    in_network_reduction: bool = False
    name: str = ""
    sources: dict[str, str] = {}

    def __post_init__(self) -> None:
        if self.oversubscription < 1.0:
            raise InputError("must be at least 1", field="oversubscription", value=self.oversubscription)
        if self.torus and self.topology != "torus":
            raise InputError("is only for topology torus", field="torus")


class StorageSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """Shared storage as the whole cluster sees it: rates are totals, `per_node` limits one server."""

    read_bytes_per_s: BytesPerSecond = msgspec.field(name="read")
    write_bytes_per_s: BytesPerSecond = msgspec.field(name="write")
    per_node_bytes_per_s: BytesPerSecond | None = msgspec.field(default=None, name="per_node")
    latency_s: Seconds = msgspec.field(default=1e-3, name="latency")
    size_bytes: Bytes = msgspec.field(default=0, name="size")
    name: str = ""
    sources: dict[str, str] = {}


class ClusterSpec(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="cluster"):
    """`nodes` equal servers on one fabric; `topology` says where each of them stands, from a file."""

    name: Name
    server: ServerSpec
    num_nodes: PositiveInt = msgspec.field(name="nodes")
    fabric: FabricSpec
    storage: StorageSpec | None = None
    collectives: tuple[CollectivePoint, ...] = ()
    topology: TopologyFile | None = None
    sources: dict[str, str] = {}

    @property
    def chip(self) -> ChipSpec:
        """The chip that every server carries."""
        return self.server.chip

    @property
    def num_chips(self) -> int:
        """All chips of the cluster."""
        return self.num_nodes * self.server.num_chips

    @property
    def scaleup_size(self) -> int:
        """Chips in one scale-up domain, never more than the cluster has."""
        return min(self.server.scaleup_size, self.num_chips)
