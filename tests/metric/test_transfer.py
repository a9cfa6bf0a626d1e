"""Scalars of any kind become float64 arrays."""

import numpy as np
import pytest
import torch

from notebook_learner.metric import tensors as tensors_module
from notebook_learner.metric.tensors import alike, bring, fetch, to_host

KINDS = {
    "bool": torch.tensor(True),
    "int": torch.tensor(7),
    "uint8": torch.tensor(200, dtype=torch.uint8),
    "half": torch.tensor(0.1, dtype=torch.float16),
    "bf16": torch.tensor(0.1, dtype=torch.bfloat16),
    "float": torch.tensor(0.1),
    "double": torch.tensor(0.1, dtype=torch.float64),
    "one element": torch.tensor([3.5]),
    "with gradient": torch.tensor(2.0, requires_grad=True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_of_any_type_is_read_exactly(kind, device):
    tensor = KINDS[kind].to(device)
    (array,) = to_host([[tensor, tensor]])
    assert array.dtype == np.float64
    assert array.tolist() == [KINDS[kind].item()] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_one_transfer_reads_the_same(kind, device):
    assert fetch([KINDS[kind].to(device)] * 3) == [KINDS[kind].item()] * 3


def test_kinds_may_mix_in_a_list(device):
    mixed = [1, True, 0.5, np.float32(0.25), np.int64(3), torch.tensor(4.0, device=device), torch.tensor(5)]
    assert to_host([mixed, [], [2]])[0].tolist() == [1.0, 1.0, 0.5, 0.25, 3.0, 4.0, 5.0]
    assert [len(array) for array in to_host([mixed, [], [2]])] == [7, 0, 1]


def test_nan_and_infinity_pass(device):
    values = [float("nan"), float("inf"), float("-inf")]
    (array,) = to_host([[torch.tensor(value, device=device) for value in values]])
    np.testing.assert_array_equal(array, values)


def test_none_is_no_number():
    with pytest.raises(TypeError):
        to_host([[1.0, None]])


class Elsewhere(torch.Tensor):
    """A tensor that says it lives on another device, so that every machine walks that path."""

    is_cpu = False


def elsewhere(value, dtype=torch.float32):
    return torch.tensor(value, dtype=dtype).as_subclass(Elsewhere)


def test_all_lists_share_one_transfer(monkeypatch):
    sizes = []

    def counted(tensors):
        sizes.append(len(tensors))
        return fetch(tensors)

    monkeypatch.setattr(tensors_module, "fetch", counted)
    losses = [elsewhere(0.5), elsewhere(0.25)]
    norms = [float("nan"), elsewhere(4.0)]
    hits = [elsewhere(3, torch.int64), elsewhere(5, torch.int64)]
    arrays = to_host([losses, hits, norms, [32, 32]])
    np.testing.assert_array_equal(arrays, [[0.5, 0.25], [3.0, 5.0], [np.nan, 4.0], [32.0, 32.0]])
    assert sizes == [5]


def test_one_transfer_reads_all_types(device):
    tensors = [tensor.to(device) for tensor in KINDS.values()]
    assert fetch(tensors) == [tensor.item() for tensor in KINDS.values()]


def test_numbers_take_the_place_of_tensors_that_are_elsewhere():
    here, whole = torch.tensor(4.0), elsewhere([1.0, 2.0])
    lists = [[elsewhere(0.5), 7, here], [], [elsewhere(3, torch.int64), whole]]
    bring(lists)
    assert lists == [[0.5, 7, here], [], [3, whole]]
    assert lists[0][2] is here and lists[2][1] is whole, "to_host says what is wrong with two numbers"


def test_lists_of_equal_numbers_are_found_without_asking_a_device():
    class Asked(Exception):
        pass

    class Silent(torch.Tensor):
        def __eq__(self, other):
            raise Asked

    tensor = torch.tensor(4).as_subclass(Silent)
    lists = [[4, 4], [4, 4], [4.0, True], [tensor, 4], [tensor, 4], [4, True], []]
    assert alike(lists) == [0, 0, 2, 3, 4, 2, 6]
