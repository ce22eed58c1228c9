"""What one rank of the built-in trainer does, operator by operator, timed with PyTorch on one core.

Shapes are those of small models, in the three products of training (forward, data gradient, weight
gradient). Nothing here knows of a whole step: `perfmodel.eager` adds operators up.
"""

from __future__ import annotations

import functools
import itertools
import mmap
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec
import torch
from torch.nn import functional

from groundplane.probe.timer import Stopwatch
from groundplane.spec.cluster import AttentionPoint, BandwidthPoint, MatmulPoint, OperatorPoint, OverheadPoint

Point = MatmulPoint | AttentionPoint | OperatorPoint | OverheadPoint | BandwidthPoint

MATMUL_SHAPES = (
    (64, 64, 64), (256, 256, 256), (256, 1024, 256), (256, 1024, 1024), (256, 4096, 1024), (1024, 64, 64),
    (1024, 128, 256), (1024, 256, 256), (1024, 704, 256), (1024, 256, 704), (1024, 1024, 1024),
    (1024, 4096, 512), (4096, 128, 256), (4096, 256, 256), (4096, 768, 256), (4096, 256, 768),
    (2048, 2048, 512), (2048, 8192, 256), (512, 512, 2048), (4096, 4096, 64), (128, 2048, 2048),
)  # fmt: skip
"""(m, n, k): tokens, output features, input features."""

QUICK_MATMUL_SHAPES = ((64, 64, 64), (256, 1024, 256), (1024, 256, 256), (1024, 1024, 1024), (4096, 256, 768))

ATTENTION_SHAPES = (
    (4, 64, 8, 8, 32), (4, 128, 8, 8, 32), (4, 256, 8, 8, 32), (2, 512, 8, 8, 64), (1, 1024, 8, 8, 64),
    (2, 256, 8, 8, 64), (2, 256, 4, 4, 128),
)  # fmt: skip
"""(batch, seq, heads, kv_heads, head_dim); key/value heads are repeated beforehand, as the trainer does."""

QUICK_ATTENTION_SHAPES = ((4, 64, 8, 8, 32), (2, 512, 8, 8, 64))

ELEMENTS = (1 << 12, 1 << 15, 1 << 18, 1 << 20, 1 << 22, 7 << 20)
"""Sizes of element-wise operators; the largest stays below the 32 MiB from which glibc maps every buffer
anew."""

QUICK_ELEMENTS = (1 << 12, 1 << 18, 7 << 20)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
MAPPED_BYTES = 48 << 20
ROW = 256
ROTATED_BYTES = 32 << 20
"""Operands of so much memory take turns: in a step each tensor is touched again only after all the others."""

MOST_SETS = 64
Indexed = Callable[[int], object]
Sets = list[tuple[torch.Tensor, ...]]


def measure(watch: Stopwatch, dtypes: tuple[str, ...], *, quick: bool) -> Iterator[Point]:
    """Times everything, one point after the other; `processes` is left at 1 for the caller to set."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for dtype in dtypes:
        yield from matmuls(watch, dtype, QUICK_MATMUL_SHAPES if quick else MATMUL_SHAPES)
    sizes = QUICK_ELEMENTS if quick else ELEMENTS
    shapes = QUICK_ATTENTION_SHAPES if quick else ATTENTION_SHAPES
    for dtype in dtypes:
        yield from attentions(watch, dtype, shapes)
        yield from operators(watch, dtype, sizes)
    yield from overheads(watch)
    yield from bandwidths(watch)


def matmuls(watch: Stopwatch, dtype: str, shapes: tuple[tuple[int, int, int], ...]) -> Iterator[MatmulPoint]:
    """The three products of a linear layer, each in the memory layout that autograd gives it."""
    kind = DTYPES[dtype]
    for m, n, k in shapes:
        sets = _num_sets((m * k + n * k + m * n) * kind.itemsize)
        x = [torch.ones(m, k, dtype=kind) for _ in range(sets)]
        weight = [torch.ones(n, k, dtype=kind) for _ in range(sets)]
        y = [torch.ones(m, n, dtype=kind) for _ in range(sets)]
        products: tuple[tuple[Literal["forward", "data_gradient", "weight_gradient"], Indexed], ...] = (
            ("forward", lambda i, x=x, weight=weight: x[i] @ weight[i].t()),  # type: ignore[misc]
            ("data_gradient", lambda i, y=y, weight=weight: y[i] @ weight[i]),  # type: ignore[misc]
            ("weight_gradient", lambda i, x=x, y=y: y[i].t() @ x[i]),  # type: ignore[misc]
        )
        for which, product in products:
            yield MatmulPoint(dtype, m, n, k, watch.time_s(_rotating(product, sets)), which=which)


def attentions(
    watch: Stopwatch, dtype: str, shapes: tuple[tuple[int, int, int, int, int], ...]
) -> Iterator[AttentionPoint]:
    """Causal scaled-dot-product attention, forward and backward."""
    for batch, seq, heads, kv_heads, head_dim in shapes:
        sets = _num_sets(3 * batch * heads * seq * head_dim * DTYPES[dtype].itemsize)
        inputs = [
            tuple(
                torch.ones(batch, heads, seq, head_dim, dtype=DTYPES[dtype], requires_grad=True)
                for _ in range(3)
            )
            for _ in range(sets)
        ]

        def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        forward_s, backward_s = _both(watch, attention, inputs)
        yield AttentionPoint(dtype, batch, seq, heads, kv_heads, head_dim, forward_s, backward_s)


def operators(watch: Stopwatch, dtype: str, sizes: tuple[int, ...]) -> Iterator[OperatorPoint]:
    """Element-wise and row-wise operators by number of output elements."""
    kind = DTYPES[dtype]
    for elements in sizes:
        rows = elements // ROW
        sets = _num_sets(3 * elements * kind.itemsize)

        def some(*shape: int, kind: torch.dtype = kind, sets: int = sets) -> list[torch.Tensor]:
            return [torch.ones(*shape, dtype=kind, requires_grad=True) for _ in range(sets)]

        x, y, scale = some(rows, ROW), some(rows, ROW), some(ROW)
        cases: dict[str, tuple[Callable[..., torch.Tensor], Sets]] = {
            "multiply": (torch.mul, list(zip(x, y, strict=True))),
            "add": (torch.add, list(zip(x, y, strict=True))),
            "silu": (functional.silu, [(one,) for one in x]),
            "rms_norm": (_rms_norm, list(zip(x, scale, strict=True))),
            "copy": (_transposed, [(one,) for one in x]),
        }
        if dtype == "bf16":
            wide: Sets = [(one,) for one in some(rows, ROW, kind=torch.float32)]
            cases["cast"] = (_narrowed, wide)
        else:
            width = min(4096, max(ROW, elements // 16))
            targets = torch.zeros(elements // width, dtype=torch.int64)
            logits: Sets = [(one,) for one in some(elements // width, width)]
            cases["cross_entropy"] = (functools.partial(functional.cross_entropy, target=targets), logits)
        for name, (operation, inputs) in cases.items():
            forward_s, backward_s = _both(watch, operation, inputs)
            yield OperatorPoint(name, dtype, elements, forward_s, backward_s)
    if dtype == "fp32":
        yield from _optimizer(watch, sizes)


def _rms_norm(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return functional.rms_norm(x, (ROW,), scale, 1e-6)


def _narrowed(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16)


def _transposed(x: torch.Tensor) -> torch.Tensor:
    """A copy that swaps two dimensions, as the way from heads back to features does."""
    rows = x.shape[0]
    group = min(rows, 64)
    return x.view(rows // group, group, 8, ROW // 8).transpose(1, 2).contiguous()


def _optimizer(watch: Stopwatch, sizes: tuple[int, ...]) -> Iterator[OperatorPoint]:
    """AdamW over one tensor of each size, and clipping its gradient; `forward` is the whole pass."""
    for elements in sizes:
        parameter = torch.nn.Parameter(torch.randn(elements))
        parameter.grad = torch.randn(elements)
        optimizer = torch.optim.AdamW([parameter], lr=1e-9, fused=True)
        yield OperatorPoint("adamw", "fp32", elements, watch.time_s(optimizer.step))
        clip_s = watch.time_s(lambda p=parameter: torch.nn.utils.clip_grad_norm_([p], 1e9))  # type: ignore[misc]
        yield OperatorPoint("clip", "fp32", elements, clip_s)


def _num_sets(set_bytes: int) -> int:
    """How many sets of operands take turns, so that none is found in a cache that training would not find it
    in."""
    return max(1, min(MOST_SETS, ROTATED_BYTES // set_bytes))


def _rotating(operation: Indexed, sets: int) -> Callable[[], object]:
    """The operation on one set of operands after the other."""
    turns = itertools.cycle(range(sets))
    return lambda: operation(next(turns))


def _both(watch: Stopwatch, operation: Callable[..., torch.Tensor], inputs: Sets) -> tuple[float, float]:
    """Seconds forward and backward of an operation over sets of inputs; gradients are made anew each time."""
    forward_s = watch.time_s(_rotating(lambda i: operation(*inputs[i]), len(inputs)))
    results = [operation(*one) for one in inputs]
    gradients = [torch.ones_like(result) for result in results]

    def backward(i: int) -> Any:
        return torch.autograd.grad(results[i], inputs[i], gradients[i], retain_graph=True)

    return forward_s, watch.time_s(_rotating(backward, len(inputs)))


def overheads(watch: Stopwatch) -> Iterator[OverheadPoint]:
    """What one operator costs when it has nothing to compute: forward, and forward with its backward."""
    small = torch.ones(8, requires_grad=True)
    length = 50

    def chain() -> torch.Tensor:
        x = small
        for _ in range(length):
            x = x * 1.0
        return x

    forward_s = watch.time_s(chain) / length
    gradient = torch.ones(8)
    both_s = watch.time_s(lambda: torch.autograd.grad(chain(), small, gradient)) / length
    yield OverheadPoint("eager_forward", forward_s)
    yield OverheadPoint("eager_backward", max(both_s - forward_s, 0.0))


def bandwidths(watch: Stopwatch) -> Iterator[BandwidthPoint]:
    """Copy and triad by working set, and the first touch of memory that the allocator maps anew."""
    for size_bytes in (1 << 15, 1 << 18, 1 << 20, 1 << 23, 1 << 25, 1 << 28):
        count = size_bytes // 12
        a, b, c = (torch.ones(count) for _ in range(3))
        copy_s = watch.time_s(lambda a=a, b=b: b.copy_(a))  # type: ignore[misc]
        triad_s = watch.time_s(lambda a=a, b=b, c=c: torch.add(a, b, alpha=3.0, out=c))  # type: ignore[misc]
        yield BandwidthPoint(size_bytes, 8 * count / copy_s, "copy")
        yield BandwidthPoint(size_bytes, 12 * count / triad_s, "triad")
    yield BandwidthPoint(MAPPED_BYTES, MAPPED_BYTES / _first_touch_s(watch), "first_touch")


def _first_touch_s(watch: Stopwatch) -> float:
    """Seconds by which filling freshly mapped memory takes longer than filling memory already touched."""

    def fill_fresh() -> None:
        with mmap.mmap(-1, MAPPED_BYTES) as mapping:
            view = torch.frombuffer(mapping, dtype=torch.float32)
            view.fill_(1.0)
            del view

    kept = torch.empty(MAPPED_BYTES // 4)
    fresh_s = watch.time_s(fill_fresh)
    return max(fresh_s - watch.time_s(lambda: kept.fill_(1.0)), 1e-6)


def with_processes(point: Point, processes: int) -> Point:
    """The point as measured by `processes` processes at once."""
    return msgspec.structs.replace(point, processes=processes)
