"""CPU use and memory: the machine's counters, and no import before they are needed."""

import math
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from notebook_learner.metric import CpuMemory, CpuUse, cpu


@pytest.fixture
def machine(monkeypatch):
    """A machine whose clock and counters the test moves."""
    state = SimpleNamespace(now=0.0, user=0.0, idle=0.0, iowait=0.0, guest=0.0)
    names = ["user", "idle", "iowait", "guest"]

    class Times(tuple):
        __slots__ = ()
        user, idle, iowait, guest = (property(lambda self, i=i: self[i]) for i in range(4))

    monkeypatch.setattr(psutil, "cpu_times", lambda: Times(getattr(state, name) for name in names))
    monkeypatch.setattr(cpu.time, "monotonic", lambda: state.now)
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
    assert "notebook_learner.metric.cpu" in loaded
    assert not {"psutil", "pynvml", "matplotlib", "torchmetrics"} & set(loaded)
