"""One request under way, as the plain simulator holds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from groundplane.sim.serving.outcome import NEVER

if TYPE_CHECKING:
    from groundplane.sim.serving.reference.replica import Replica


@dataclass(eq=False)
class Work:
    """A request.

    `generated` tokens were sent; `computed` tokens of prompt and output are in the cache of the replica it is
    on: the first `held` hash blocks as shared units, the rest in `private_blocks`. `pending_tokens` is what
    it adds to its replica's waiting prompt tokens, `expected_tokens` to its held ones. A cache that waits on
    another replica (`remote`) is described by `remote_held` and `remote_blocks`.
    """

    index: int
    prompt: int
    output: int
    model: int
    priority: int
    session: int
    hashes: list[int]
    generated: int = 0
    computed: int = 0
    held: int = 0
    private_blocks: int = 0
    pending_tokens: int = 0
    expected_tokens: int = 0
    swapped: bool = False
    remote: Replica | None = None
    remote_held: int = 0
    remote_blocks: int = 0
    last_token_ns: int = NEVER
    state: int = 0
    admitted_ns: int = NEVER
    first_token_ns: int = NEVER
    finish_ns: int = NEVER
    max_gap_ns: int = 0
    replica: int = NEVER
    prefill_replica: int = NEVER
    hit_tokens: int = 0
    tier_hit_tokens: int = 0
    preemptions: int = 0
    moves: int = 0
    transfer_ns: int = 0
    seen: bool = field(default=False)
    """It has joined a batch before."""

    @property
    def rank(self) -> tuple[int, int]:
        """Its place in every line: priority, then arrival."""
        return (-self.priority, self.index)

    @property
    def target(self) -> int:
        """Tokens to be in the cache before the next can be computed: all that are known."""
        return self.prompt + self.generated

    @property
    def most_tokens(self) -> int:
        """Tokens in the cache when its last token is computed."""
        return self.prompt + self.output - 1
