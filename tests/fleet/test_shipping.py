"""What travels between ranks, and what does not."""

from __future__ import annotations

import torch

from notebook_learner.ranks.shipping import pack, unpack


def test_a_part_of_a_larger_tensor_travels_without_the_rest():
    x = torch.arange(1_000_000.0).reshape(100_000, 10)
    parts = {"rows": x[4:8], "column": x[:, 1][:4], "label": "a"}
    packed = pack(parts, parts=True)
    assert len(packed) < 5_000 < len(pack(x[:4]))
    found = unpack(packed)
    assert found["rows"].tolist() == x[4:8].tolist()
    assert found["column"].tolist() == [1.0, 11.0, 21.0, 31.0]
    assert found["label"] == "a"
