"""The line about the GPUs; without one it says so."""

import re

import pytest
import torch

from notebook_learner.metric import CudaMetric, MetricGroup


def test_it_tells_what_this_machine_has():
    text = CudaMetric().text()
    if torch.cuda.is_available():
        assert re.match(r"GPU #\d+ - Memory \d+\.\d\d/\d+\.\d\d Gb", text)
    else:
        assert text == "no CUDA device"


@pytest.fixture
def two_gpus(monkeypatch):
    """A machine with two GPUs, of which this process uses the second."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: [0, 2**20][index])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (1_000_000_000, 4_000_000_000))
    monkeypatch.setattr(torch.cuda, "utilization", lambda index: 37)
    monkeypatch.setattr(torch.cuda, "power_draw", lambda index: 120_400)


def test_only_devices_in_use_are_asked(two_gpus):
    assert CudaMetric().text() == "GPU #1 - Memory 3.00/4.00 Gb - Usage 37 % - Power 120 W"


def test_with_none_in_use_yet_the_current_one_is_asked(two_gpus, monkeypatch):
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: 0)
    assert CudaMetric().text().startswith("GPU #0 - Memory")


def test_several_devices_share_the_line(two_gpus, monkeypatch):
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: 1)
    assert re.fullmatch(r"GPU #0 - .* W \| GPU #1 - .* W", CudaMetric().text())


@pytest.mark.parametrize("error", [ModuleNotFoundError("pynvml"), RuntimeError("NVML: not supported")])
def test_without_an_answer_from_nvml_the_memory_remains(two_gpus, monkeypatch, error):
    def fail(index):
        raise error

    monkeypatch.setattr(torch.cuda, "utilization", fail)
    monkeypatch.setattr(torch.cuda, "power_draw", fail)
    assert CudaMetric().text() == "GPU #1 - Memory 3.00/4.00 Gb"


def test_it_is_text_and_no_column(two_gpus):
    group = MetricGroup([CudaMetric()])
    group.collect(object())
    columns, texts = group.read()
    assert columns == {}
    assert list(texts) == ["Cuda"]
    assert group.finals() == {}
