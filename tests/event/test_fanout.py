import threading

import pytest

from notebook_learner.errors import LoggerError
from notebook_learner.event import FanOut, Notice


class Tape(list):
    def handle(self, event):
        self.append(event)


class Broken(Tape):
    """Takes the event, then raises as often as it was told to."""

    def __init__(self, error, times=1):
        super().__init__()
        self.error, self.times = error, times

    def handle(self, event):
        self.append(event)
        if len(self) <= self.times:
            raise self.error


HELLO, AGAIN = Notice("hello"), Notice("again")


def test_recorders_hear_before_watchers_and_in_order():
    heard = []

    class Named:
        def __init__(self, name):
            self.name = name

        def handle(self, event):
            heard.append(self.name)

    FanOut([Named("history"), Named("files")], [Named("panel")]).emit(HELLO)
    assert heard == ["history", "files", "panel"]


def test_a_failing_recorder_stops_the_run_after_everybody_has_the_event():
    first, broken, last, screen = Tape(), Broken(OSError(28, "No space left")), Tape(), Tape()
    fan_out = FanOut([first, broken, last], [screen])
    with pytest.raises(LoggerError) as error:
        fan_out.emit(HELLO)
    assert first == last == screen == [HELLO]
    assert error.value.__cause__ is broken.error
    for part in ("Broken", "No space left", "step boundary", "nothing is lost", "fit()"):
        assert part in str(error.value)
    fan_out.emit(AGAIN)
    assert first == broken == [HELLO, AGAIN]


def test_two_failing_recorders_are_both_named():
    fan_out = FanOut([Broken(OSError("full")), Broken(ValueError("odd"))])
    with pytest.raises(LoggerError, match=r"(?s)OSError: full.*ValueError: odd"):
        fan_out.emit(HELLO)


def test_a_failing_watcher_is_told_once_and_let_go():
    tape, broken, screen = Tape(), Broken(RuntimeError("no terminal"), times=9), Tape()
    fan_out = FanOut([tape], [broken, screen])
    fan_out.emit(HELLO)
    fan_out.emit(AGAIN)
    told = [event for event in tape if event not in (HELLO, AGAIN)]
    assert [notice.level for notice in told] == ["warning"]
    assert "Broken failed (RuntimeError: no terminal)" in told[0].text
    assert tape == screen == [HELLO, told[0], AGAIN]
    assert fan_out.watchers == (screen,) and broken == [HELLO]


def test_watchers_that_fail_at_the_notice_are_let_go_too():
    class FailsAtNotices(Tape):
        def handle(self, event):
            if event is not HELLO:
                raise RuntimeError

    tape = Tape()
    fan_out = FanOut([tape], [Broken(RuntimeError("a"), 9), FailsAtNotices(), FailsAtNotices()])
    fan_out.emit(HELLO)
    assert fan_out.watchers == ()
    assert len(tape) == 4


def test_an_interrupt_inside_a_recorder_passes_on_after_the_others_have_the_event():
    last = Tape()
    with pytest.raises(KeyboardInterrupt):
        FanOut([Broken(KeyboardInterrupt()), last]).emit(HELLO)
    assert last == [HELLO]


def test_watchers_come_and_go():
    tape, screen = Tape(), Tape()
    fan_out = FanOut([tape])
    fan_out.add(screen)
    fan_out.add(screen)
    fan_out.emit(HELLO)
    fan_out.remove(screen)
    fan_out.remove(screen)
    fan_out.emit(AGAIN)
    assert screen == [HELLO] and tape == [HELLO, AGAIN]


def test_watchers_are_told_apart_by_identity():
    a, b = Tape(), Tape()
    fan_out = FanOut([], [a, b])
    assert a == b
    fan_out.remove(b)
    assert [watcher is a for watcher in fan_out.watchers] == [True]


def test_watchers_may_come_from_another_thread_while_events_flow():
    tape = Tape()
    fan_out = FanOut([tape])
    screens = [Tape() for _ in range(200)]

    def come():
        for screen in screens:
            fan_out.add(screen)

    threads = [threading.Thread(target=come) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(500):
        fan_out.emit(HELLO)
    for thread in threads:
        thread.join()
    assert len(fan_out.watchers) == 200 and len(tape) == 500
