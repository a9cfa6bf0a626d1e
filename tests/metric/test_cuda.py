"""The line about the GPUs; without one it says so."""

import re

import pytest
import torch

from notebook_learner.metric import CudaMetric, GpuReading, MetricGroup


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
    monkeypatch.setattr(torch.cuda, "temperature", lambda index: 41)


def test_only_devices_in_use_are_asked(two_gpus):
    expected = "GPU #1 - Memory 3.00/4.00 Gb - Usage 37 % - Power 120 W - Temperature 41 °C"
    assert CudaMetric().text() == expected


def test_with_none_in_use_yet_the_current_one_is_asked(two_gpus, monkeypatch):
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: 0)
    assert CudaMetric().text().startswith("GPU #0 - Memory")


def test_several_devices_share_the_line(two_gpus, monkeypatch):
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: 1)
    assert re.fullmatch(r"GPU #0 - .* °C \| GPU #1 - .* °C", CudaMetric().text())


@pytest.mark.parametrize("error", [ModuleNotFoundError("pynvml"), RuntimeError("NVML: not supported")])
def test_without_an_answer_from_nvml_the_memory_remains(two_gpus, monkeypatch, error):
    def fail(index):
        raise error

    monkeypatch.setattr(torch.cuda, "utilization", fail)
    monkeypatch.setattr(torch.cuda, "power_draw", fail)
    monkeypatch.setattr(torch.cuda, "temperature", fail)
    assert CudaMetric().text() == "GPU #1 - Memory 3.00/4.00 Gb"


def test_it_is_text_and_no_column(two_gpus):
    group = MetricGroup([CudaMetric()])
    group.collect(object())
    columns, texts = group.read()
    assert columns == {}
    assert list(texts) == ["Cuda"]
    assert group.finals() == {}


def test_readings_may_come_from_elsewhere_and_say_what_they_know():
    readings = [GpuReading(0, 1_500_000_000, 8_000_000_000, celsius=55.4), GpuReading(3, 0, 10**9, watts=9.6)]
    assert CudaMetric(lambda: readings).text() == (
        "GPU #0 - Memory 1.50/8.00 Gb - Temperature 55 °C | GPU #3 - Memory 0.00/1.00 Gb - Power 10 W"
    )
    assert CudaMetric(list).text() == "no CUDA device"
