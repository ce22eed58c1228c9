"""The order of samples: complete, shuffled anew each epoch, and the same for any number of ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from groundplane.platform.training.data import TokenData, permute, rank_slice, sample_indices
from groundplane.spec.errors import InputError


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**40), epoch=st.integers(0, 9))
def test_permute_hits_every_value_once(size: int, seed: int, epoch: int) -> None:
    order = permute(np.arange(size), size, key=(seed, epoch))
    assert sorted(order.tolist()) == list(range(size))


def test_permute_is_pinned() -> None:
    """Another order would silently change what resumed runs train on."""
    assert permute(np.arange(10), 10, key=(3, 1)).tolist() == [4, 0, 5, 3, 7, 6, 8, 9, 2, 1]


@given(size=st.integers(2, 200), batch=st.integers(1, 64), seed=st.integers(0, 99))
def test_each_epoch_trains_every_sample_once(size: int, batch: int, seed: int) -> None:
    steps = -(-2 * size // batch)
    seen = np.concatenate([sample_indices(seed, step, batch, size) for step in range(steps)])
    assert sorted(seen[:size].tolist()) == list(range(size))
    assert sorted(seen[size : 2 * size].tolist()) == list(range(size))


def test_epochs_and_seeds_differ() -> None:
    values = np.arange(1000)
    orders = [permute(values, 1000, key=key) for key in ((0, 0), (0, 1), (1, 0))]
    for one in range(3):
        assert np.mean(orders[one] == values) < 0.02
        assert np.mean(orders[one] == orders[one - 1]) < 0.02


@given(world=st.sampled_from([1, 2, 3, 4, 6]), micro=st.sampled_from([1, 2, 4]), step=st.integers(0, 50))
def test_ranks_share_the_same_global_batch(world: int, micro: int, step: int) -> None:
    batch = 48
    samples = sample_indices(5, step, batch, 1000)
    steps = batch // (world * micro)
    parts = [rank_slice(samples, k, rank, world, micro) for k in range(steps) for rank in range(world)]
    assert np.concatenate(parts).tolist() == samples.tolist()


def test_batches_are_packed_and_shifted_by_one(tmp_path: Path) -> None:
    np.arange(21, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    data = TokenData(tmp_path / "tokens.bin", "uint16", seq=5, seed=0)
    assert data.num_samples == 4
    batch = data.batch(np.array([0, 3]))
    assert batch.inputs.tolist() == [[0, 1, 2, 3, 4], [15, 16, 17, 18, 19]]
    assert batch.targets.tolist() == [[1, 2, 3, 4, 5], [16, 17, 18, 19, 20]]


def test_less_than_one_sequence_is_refused(tmp_path: Path) -> None:
    np.arange(5, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    with pytest.raises(InputError, match="has 5 tokens and must have more than seq, got 5"):
        TokenData(tmp_path / "tokens.bin", "uint16", seq=5, seed=0)
