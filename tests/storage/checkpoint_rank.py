"""One rank of a gang that saves or loads a sharded model: `checkpoint_rank.py MODE RANK WORLD SPEC
RENDEZVOUS`."""

from __future__ import annotations

import sys
from datetime import timedelta

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from groundplane.platform.storage.checkpoints import Lineage, StoreCheckpoints
from groundplane.platform.storage.spec import StoreSpec
from groundplane.platform.storage.store import Store


def main() -> None:
    mode, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    spec = msgspec.json.decode(sys.argv[4], type=StoreSpec)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{sys.argv[5]}",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    group = dist.new_group(backend="gloo")
    torch.manual_seed(1 if mode == "save" else 2)
    model = nn.Sequential(nn.Linear(33, 17), nn.Linear(17, 5))
    whole = {name: value.detach().clone() for name, value in model.state_dict().items()}
    fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
    state = get_model_state_dict(model)
    with Store(spec) as store:
        checkpoints = StoreCheckpoints(store, "runs/a", attempt=f"{mode}{world}", group=group)
        if mode == "save":
            checkpoints.save(state, step=7, lineage=Lineage(data_position=70))
            checkpoints.finish()
            torch.save(whole, sys.argv[5] + ".whole")
        else:
            found = checkpoints.load(state)
            assert found is not None
            assert (found.step, found.world_size, found.lineage.data_position) == (7, 2, 70)
            expected = torch.load(sys.argv[6])
            for name, value in state.items():
                assert torch.equal(value.full_tensor(), expected[name]), name
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
