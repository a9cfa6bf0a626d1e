"""CPU use and memory: the machine's counters, and no import before they are needed."""

import math
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from notebook_learner.metric import CpuMemory, CpuTemperature, CpuUse, hardware


@pytest.fixture
def machine(monkeypatch):
    """A machine whose clock and counters the test moves."""
    state = SimpleNamespace(now=0.0, user=0.0, idle=0.0, iowait=0.0, guest=0.0)
    names = ["user", "idle", "iowait", "guest"]

    class Times(tuple):
        __slots__ = ()
        user, idle, iowait, guest = (property(lambda self, i=i: self[i]) for i in range(4))

    monkeypatch.setattr(psutil, "cpu_times", lambda: Times(getattr(state, name) for name in names))
    monkeypatch.setattr(hardware.time, "monotonic", lambda: state.now)
    return state


def test_use_is_the_busy_share_since_the_last_reading(machine):
    use = CpuUse()
    use.reset()
    machine.now, machine.user, machine.idle = 1.0, 3.0, 1.0
    assert use.sample() == 75.0
    machine.now, machine.idle = 2.0, 5.0
    assert use.sample() == 0.0


def test_waiting_for_a_disk_is_idle_and_guests_count_once(machine):
    use = CpuUse()
    use.reset()
    machine.now, machine.user, machine.guest, machine.idle, machine.iowait = 1.0, 2.0, 2.0, 1.0, 1.0
    assert use.sample() == 50.0


def test_readings_closer_than_the_counters_can_tell_repeat_the_last(machine):
    use = CpuUse()
    use.reset()
    machine.now, machine.user, machine.idle = 0.1, 1.0, 0.0
    assert math.isnan(use.sample())
    machine.now = 0.3
    assert use.sample() == 100.0
    machine.now, machine.idle = 0.4, 100.0
    assert use.sample() == 100.0


def test_a_new_split_does_not_cut_the_window(machine):
    use = CpuUse()
    use.reset()
    machine.now, machine.user = 0.15, 1.0
    use.reset()
    machine.now, machine.idle = 0.3, 1.0
    assert use.sample() == 50.0


def test_without_a_reset_the_first_reading_starts_the_clock(machine):
    use = CpuUse()
    assert math.isnan(use.sample())
    machine.now, machine.user = 1.0, 1.0
    assert use.sample() == 100.0


def test_counters_that_stand_still_leave_the_last_reading(machine):
    use = CpuUse()
    use.reset()
    machine.now, machine.user = 1.0, 1.0
    assert use.sample() == 100.0
    machine.now = 2.0
    assert use.sample() == 100.0


def test_the_real_machine_answers_in_percent():
    use = CpuUse()
    use.reset()
    use._since -= 1.0
    while math.isnan(value := use.sample()):
        use._since -= 1.0
    assert 0.0 <= value <= 100.0


def test_memory_is_what_the_machine_uses():
    used = psutil.virtual_memory().used * 1e-9
    assert CpuMemory().sample() == pytest.approx(used, abs=1.0)


def test_names_are_those_of_burn():
    assert (CpuUse.name, CpuUse.unit) == ("CPU Usage", "%")
    assert (CpuMemory.name, CpuMemory.unit) == ("CPU Memory", "Gb")


def test_importing_the_metrics_loads_nothing_that_they_may_not_use():
    code = "import sys, notebook_learner.metric as m; m.CpuUse(), m.CudaMetric(); print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "notebook_learner.metric.hardware" in loaded
    assert not {"psutil", "pynvml", "matplotlib", "torchmetrics"} & set(loaded)


def chip(*temperatures):
    return [SimpleNamespace(label="", current=each, high=None, critical=None) for each in temperatures]


def test_the_hottest_sensor_of_the_processors_is_the_temperature():
    sensors = {"nvme": chip(99.0), "coretemp": chip(40.0, 61.5, None), "acpitz": chip(70.0)}
    assert CpuTemperature(lambda: sensors).sample() == 61.5


def test_sensors_are_asked_five_times_a_second_at_most(machine):
    readings = iter([40.0, 50.0])
    temperature = CpuTemperature(lambda: {"k10temp": chip(next(readings))})
    assert temperature.sample() == 40.0
    machine.now = 0.19
    assert temperature.sample() == 40.0
    machine.now = 0.2
    assert temperature.sample() == 50.0


@pytest.mark.parametrize("sensors", [{}, {"acpitz": chip(30.0)}, {"coretemp": chip(None)}])
def test_a_machine_that_tells_no_temperature_is_said_once(sensors, machine, caplog):
    temperature = CpuTemperature(lambda: sensors)
    for now in (0.0, 1.0, 2.0):
        machine.now = now
        assert math.isnan(temperature.sample())
    (said,) = caplog.records
    assert said.name == "notebook_learner"
    assert f"its sensors: {', '.join(sensors) or 'none'}" in said.getMessage()


def test_where_psutil_has_no_sensors_there_is_no_temperature(monkeypatch, caplog):
    monkeypatch.delattr(psutil, "sensors_temperatures", raising=False)
    assert math.isnan(CpuTemperature().sample())
    assert len(caplog.records) == 1


def test_the_real_machine_tells_a_temperature_or_that_it_has_none(caplog):
    value = CpuTemperature().sample()
    assert math.isnan(value) == bool(caplog.records)
    assert math.isnan(value) or -50 < value < 150
