"""The training loop: steps, gradient accumulation, learning rate, clipping, and the time of each stage.

What a step computes depends on the spec, the step's number and the state before it, and on nothing else;
so a run that was killed and resumed with the same ranks ends in the same bits.
"""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from groundplane.platform.training.checkpoint import Checkpoints
from groundplane.platform.training.data import TokenData, rank_slice
from groundplane.platform.training.failures import TrainingFailure
from groundplane.platform.training.parallel import Ranks, SpreadModel, now_ns
from groundplane.spec.job import TrainSpec

ADAM_BETAS: Final = (0.9, 0.95)
ADAM_EPSILON: Final = 1e-8
FINAL_RATE_SHARE: Final = 0.1
"""The cosine ends at this share of the learning rate."""
TELL_PERIOD_S: Final = 10.0
"""A line in the log at most so often."""


class Progress:
    """Appends to `progress.jsonl`, which the engine follows; written by rank 0, from two threads."""

    def __init__(self, work_dir: Path) -> None:
        self._stream = (work_dir / "progress.jsonl").open("a", encoding="utf-8")
        self._lock = threading.Lock()

    def write(self, record: dict[str, Any]) -> None:
        """One line, visible to readers at the return."""
        with self._lock:
            self._stream.write(json.dumps(record) + "\n")
            self._stream.flush()


class Trainer:
    """Model, optimizer and position of one run on one rank.

    Args:
        spec: what to train.
        ranks: this gang; the global batch must divide among its ranks (`JobSpec` and the worker check it).
        model: spread over the ranks.
        data: the tokens.
        checkpoints: where the run is saved.
        progress: on rank 0, where steps are reported; None on the others.
        stopping: asked once a step; true on any rank ends the run at the same step on all.
    """

    def __init__(
        self,
        spec: TrainSpec,
        ranks: Ranks,
        model: SpreadModel,
        data: TokenData,
        checkpoints: Checkpoints,
        progress: Progress | None,
        stopping: Callable[[], bool],
    ) -> None:
        self._spec, self._ranks, self._model, self._data = spec, ranks, model, data
        self._checkpoints, self._progress, self._stopping = checkpoints, progress, stopping
        self._micro_steps = spec.global_batch // (spec.micro_batch * ranks.world_size)
        self._optimizer = make_optimizer(spec, model.model)
        self._random = torch.get_rng_state()
        self.step = 0
        self.loss = math.nan
        self._saved_step = 0
        self._told_ns, self._told_tokens = now_ns(), 0

    @property
    def tokens(self) -> int:
        """Tokens trained so far, over all ranks."""
        return self.step * self._spec.global_batch * self._spec.seq

    def resume(self) -> bool:
        """Continues from the newest good checkpoint, if there is one."""
        self._model.warm_up(self._spec.micro_batch, self._spec.seq)
        manifest = self._checkpoints.load_latest(self._state)
        if manifest is None:
            return False
        torch.set_rng_state(self._random)
        self.step = self._saved_step = manifest.step
        self.loss = manifest.loss
        for state in self._optimizer.state.values():
            state["step"].fill_(float(manifest.step))
        return True

    def run(self) -> bool:
        """Trains up to the last step, saves it, and waits until it is durable.

        Returns:
            False where it was asked to stop before.

        Raises:
            TrainingFailure: the loss or the gradient is no number, or a save failed.
        """
        self._told_ns, self._told_tokens = now_ns(), self.tokens
        while self.step < self._spec.steps:
            stopped = self._one_step()
            if stopped:
                break
        if self._saved_step != self.step:
            self._save()
        self._checkpoints.finish()
        return self.step >= self._spec.steps

    def _one_step(self) -> bool:
        began_ns = now_ns()
        stages = dict.fromkeys(("data_ns", "forward_ns", "backward_ns", "optimizer_ns", "checkpoint_ns"), 0)
        loss = self._gradients(stages)
        mark_ns = now_ns()
        totals = self._ranks.sum(torch.tensor([loss, float(self._stopping())], dtype=torch.float64))
        self.loss = float(totals[0]) / self._ranks.world_size
        self._update()
        self.step += 1
        stages["optimizer_ns"] = now_ns() - mark_ns
        mark_ns = now_ns()
        if self.step % self._spec.checkpoint_every == 0 or self.step == self._spec.steps:
            self._save()
        self._checkpoints.raise_failure()
        stages["checkpoint_ns"] = now_ns() - mark_ns
        if self._progress is not None:
            record = {
                "step": self.step,
                "loss": self.loss,
                "tokens": self.tokens,
                "time_ns": now_ns() - began_ns,
            }
            self._progress.write(record | {"stages": stages})
            self._tell()
        return bool(totals[1] > 0)

    def _tell(self) -> None:
        """Now and then a line in the rank's log: who follows it sees that the run goes on, and how fast."""
        since_ns = now_ns() - self._told_ns
        if since_ns < TELL_PERIOD_S * 1e9:
            return
        rate = (self.tokens - self._told_tokens) / (since_ns / 1e9)
        sys.stderr.write(
            f"trainer: step {self.step} of {self._spec.steps}, loss {self.loss:.4f}, {rate:,.0f} tokens/s\n"
        )
        sys.stderr.flush()
        self._told_ns, self._told_tokens = now_ns(), self.tokens

    def _gradients(self, stages: dict[str, int]) -> float:
        """Accumulates the gradient of this rank's part of the global batch; returns its mean loss."""
        mark_ns = now_ns()
        samples = self._data.indices(self.step, self._spec.global_batch)
        total = 0.0
        for micro in range(self._micro_steps):
            mine = rank_slice(
                samples, micro, self._ranks.rank, self._ranks.world_size, self._spec.micro_batch
            )
            batch = self._data.batch(mine)
            inputs, targets = torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets)
            mark_ns = _add(stages, "data_ns", mark_ns)
            with self._model.accumulating(last=micro == self._micro_steps - 1):
                loss = self._model.loss(inputs, targets)
                total += float(loss.detach())
                mark_ns = _add(stages, "forward_ns", mark_ns)
                (loss / self._micro_steps).backward()  # type: ignore[no-untyped-call]
                mark_ns = _add(stages, "backward_ns", mark_ns)
        return total / self._micro_steps

    def _update(self) -> None:
        from groundplane.platform.training.parallel import whole

        norm = float(
            whole(torch.nn.utils.clip_grad_norm_(self._model.model.parameters(), self._spec.clip_norm))
        )
        if not (math.isfinite(self.loss) and math.isfinite(norm)):
            what = (
                f"the loss is {self.loss}"
                if not math.isfinite(self.loss)
                else f"the gradient's norm is {norm}"
            )
            raise TrainingFailure(
                f"{what} at step {self.step + 1}; stopped, the last checkpoint is step {self._saved_step}. "
                "A lower learning_rate or a longer warm-up usually helps"
            )
        rate = learning_rate(self._spec, self.step)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _save(self) -> None:
        self._random = torch.get_rng_state()
        self._checkpoints.save(self._state(), step=self.step, loss=self.loss, tokens=self.tokens)
        self._saved_step = self.step

    def _state(self) -> dict[str, Tensor]:
        """Everything but the step: parameters and both moments by parameter name, random state by rank."""
        state: dict[str, Tensor] = {f"random.{self._ranks.rank}": self._random}
        for name, parameter in self._model.model.named_parameters():
            moments = self._optimizer.state[parameter]
            state[f"model.{name}"] = parameter.detach()
            state[f"exp_avg.{name}"] = moments["exp_avg"]
            state[f"exp_avg_sq.{name}"] = moments["exp_avg_sq"]
        return state


def make_optimizer(spec: TrainSpec, model: torch.nn.Module) -> torch.optim.AdamW:
    """AdamW with decay on matrices only; its moments exist from the start, so that they can be loaded
    into."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": spec.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=spec.learning_rate, betas=ADAM_BETAS, eps=ADAM_EPSILON, fused=True
    )
    for parameter in model.parameters():
        optimizer.state[parameter] = {
            "step": torch.tensor(0.0),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def learning_rate(spec: TrainSpec, step: int) -> float:
    """The rate of the step after `step` steps: linear warm-up, then a cosine to a tenth at the last step."""
    if step < spec.warmup_steps:
        return spec.learning_rate * (step + 1) / spec.warmup_steps
    span = max(1, spec.steps - spec.warmup_steps)
    done = min(1.0, (step - spec.warmup_steps) / span)
    return spec.learning_rate * (
        FINAL_RATE_SHARE + (1 - FINAL_RATE_SHARE) * 0.5 * (1 + math.cos(math.pi * done))
    )


def _add(stages: dict[str, int], stage: str, since_ns: int) -> int:
    """Adds the time since a mark to a stage and returns the new mark."""
    now = now_ns()
    stages[stage] += now - since_ns
    return now
