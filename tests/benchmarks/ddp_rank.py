"""One rank of a training by torch's DistributedDataParallel, written by hand: for `ranks`, which tells it by
a line how many steps to take, and is told when each of them began."""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist
from ranks_work import batches_of, loss_of, net_of, optimizer_of
from torch.nn.parallel import DistributedDataParallel


def main(rank: int, world: int, meeting: str, width: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world)
    net = net_of(width)
    model, optimizer = DistributedDataParallel(net), optimizer_of(net)
    batches = [tuple(part.chunk(world)[rank] for part in batch) for batch in batches_of(width)]
    taken, total = 0, torch.zeros(())
    for line in sys.stdin:
        begun, cpu = [], time.process_time()
        for _ in range(int(line)):
            begun.append(time.perf_counter())
            loss = loss_of(model, batches[taken % len(batches)])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
            taken += 1
        weights = [float(each.detach().double().sum()) for each in net.parameters()]
        spent = (time.process_time() - cpu) / len(begun)
        print(json.dumps({"begun": begun, "weights": weights, "cpu": spent}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
