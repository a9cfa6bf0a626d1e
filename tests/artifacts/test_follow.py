"""`follow`: every value of a run in order, no value torn, none twice without being told."""

import itertools
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from artifacts_run import INFOS, Run
from hypothesis import given, settings
from hypothesis import strategies as st

from notebook_learner.artifacts import Artifacts, Block, EpochValues, TakenBack, log_tail
from notebook_learner.artifacts.follow import MOMENT, _Follower, follow
from notebook_learner.artifacts.log_tail import Tail
from notebook_learner.artifacts.read_record import read_record
from notebook_learner.artifacts.run_status import is_recent, is_run, logs_in, size_of
from notebook_learner.event import MetricInfo, Rewound, SplitEnded, SplitStarted, cut
from notebook_learner.event.record import same_pass, text_runs
from notebook_learner.logger import FileMetricLogger

ORDER = {"train": 0, "valid": 1}


class Listener:
    """Builds up what it was told, and checks that each step comes once and in order."""

    def __init__(self):
        self.passes = {}
        self.finals = {}
        self.back = []

    def hear(self, news):
        for each in news:
            if isinstance(each, TakenBack):
                self.take_back(each)
            elif isinstance(each, EpochValues):
                assert (each.epoch, each.split) not in self.finals
                self.finals[each.epoch, each.split] = dict(each.values)
            else:
                known = self.passes.setdefault((each.epoch, each.split), [])
                assert each.first == sum(block.count for block in known) + 1
                known.append(each)
        return self

    def take_back(self, told):
        self.back.append(told)
        here = (told.epoch, ORDER[told.split])
        for key in list(self.passes):
            place = (key[0], ORDER[key[1]])
            if place > here or (place == here and told.step == 0):
                del self.passes[key]
        for key in [key for key in self.finals if (key[0], ORDER[key[1]]) >= here]:
            del self.finals[key]
        if told.step:
            self.passes[told.epoch, told.split] = cut_blocks(self.passes[told.epoch, told.split], told.step)

    def values(self, epoch, split, name):
        return np.concatenate([block.columns[name].values for block in self.passes[epoch, split]])

    def texts(self, epoch, split, name):
        return [text for block in self.passes[epoch, split] for text in block.texts[name]]


def cut_blocks(blocks, step):
    kept = []
    for block in blocks:
        count = min(block.count, step - block.first + 1)
        if count > 0:
            columns = {
                name: type(column)(
                    column.values[:count], None if column.weights is None else column.weights[:count]
                )
                for name, column in block.columns.items()
            }
            texts = {name: lines[:count] for name, lines in block.texts.items()}
            kept.append(Block(block.split, block.epoch, block.first, count, columns, texts))
    return kept


def assert_heard(listener, record):
    """The listener knows exactly what was measured."""
    assert set(listener.passes) == {(past.epoch, past.split) for past in record if past.steps}
    assert listener.finals == {
        (past.epoch, past.split): dict(past.finals) for past in record if past.finals is not None
    }
    for past in record:
        names = {name for block in past.blocks for name in block.columns}
        for name in names:
            expected = np.concatenate([block.columns[name].values for block in past.blocks])
            np.testing.assert_array_equal(listener.values(past.epoch, past.split, name), expected)
        for name in {name for block in past.blocks for name in block.texts}:
            lines = [
                text for block in past.blocks for count, text in text_runs(block, name) for _ in range(count)
            ]
            assert listener.texts(past.epoch, past.split, name) == lines


def test_a_finished_run_is_told_whole_and_the_generator_ends(tmp_path):
    run = Run(tmp_path)
    run.epoch(1)
    run.epoch(2)
    run.status("finished")
    listener = Listener().hear(Artifacts(tmp_path).follow(timeout=30))
    assert_heard(listener, run.history.snapshot())
    assert listener.back == []


def test_the_values_of_a_pass_come_before_its_end_and_passes_in_order(tmp_path):
    run = Run(tmp_path)
    run.epoch(1)
    run.status("finished")
    news = list(Artifacts(tmp_path).follow(timeout=30))
    kinds = [(type(each), each.split) for each in news]
    assert kinds == [(Block, "train"), (EpochValues, "train"), (Block, "valid"), (EpochValues, "valid")]


def test_now_leaves_out_what_was_there(tmp_path):
    run = Run(tmp_path)
    run.epoch(1)
    run.emit(SplitStarted(2, "train", None, 3), run.block(2, "train", 1, 3))
    following = Artifacts(tmp_path).follow(poll=0.01, timeout=30, since="now")
    threading.Timer(0.3, lambda: run.emit(run.block(2, "train", 4, 2))).start()
    (block,) = islice(following, 1)
    assert (block.epoch, block.first, block.count) == (2, 4, 2)


def test_without_news_it_ends_at_the_timeout(tmp_path):
    run = Run(tmp_path)
    run.epoch(1)
    run.status("paused", 2)
    began = time.monotonic()
    listener = Listener().hear(Artifacts(tmp_path).follow(poll=0.01, timeout=0.3))
    assert 0.3 <= time.monotonic() - began < 20
    assert_heard(listener, run.history.snapshot())


def test_a_directory_that_is_not_there_yet_is_waited_for(tmp_path):
    directory = tmp_path / "later" / "run"

    def train():
        run = Run(directory)
        run.epoch(1)
        run.status("stopped", 2)

    threading.Timer(0.3, train).start()
    listener = Listener().hear(Artifacts(directory).follow(poll=0.01, timeout=30))
    assert set(listener.finals) == {(1, "train"), (1, "valid")}


LOOKS = {
    "follow": lambda path: list(_Follower(path).look(hurried=True)),
    "logs": lambda path: list(logs_in(path)),
    "is it a run": is_run,
    "is it running": is_recent,
    "what it measured": lambda path: Artifacts(path).history.snapshot(),
    "what is damaged": lambda path: Artifacts(path).verify(),
    "how large it is": size_of,
}


ASKED = ("stat", "lstat", "open", "listdir", "scandir")
FUNCTIONS = {name: getattr(os, name) for name in ASKED}
ACCESSOR = getattr(pathlib, "_NormalAccessor", None)  # where Python 3.10's pathlib keeps the functions
HELD = [(os, name) for name in ASKED] + [
    (ACCESSOR, name) for name in ASKED if getattr(ACCESSOR, name, None) is FUNCTIONS[name]
]


def meanwhile(monkeypatch, happen, look):
    """What `look` says where something happens before each question asked of the file system: `happen` is
    given the question's number, from 0."""
    calls = itertools.count()

    def ask(name, *args, **options):
        with monkeypatch.context() as itself:
            for place, each in HELD:
                itself.setattr(place, each, FUNCTIONS[each])
            happen(next(calls))
        return FUNCTIONS[name](*args, **options)

    with monkeypatch.context() as patched:
        for place, name in HELD:
            patched.setattr(place, name, partial(ask, name))
        said = look()
    return said, next(calls)


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
@pytest.mark.rounds(1)
def test_folders_may_go_while_somebody_looks(tmp_path, monkeypatch, look):
    """A run that goes back deletes the folders of later passes, at whatever moment another looks for them."""
    moment, at_the_end = 0, False
    while not at_the_end:
        folder = tmp_path / str(moment)
        run = Run(folder)
        run.epoch(1)
        run.epoch(2)

        def go_back(call, last=moment, folder=folder):
            if call == last:
                shutil.rmtree(folder / "train")
                shutil.rmtree(folder / "valid" / "epoch-2")

        _, asked = meanwhile(monkeypatch, go_back, partial(look, folder))
        at_the_end = asked <= moment
        moment += 1
    assert moment > 1


@pytest.mark.parametrize("folders", [(), ("train/epoch-2",)], ids=["", "a pass is about to begin"])
@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.rounds(1)
def test_a_run_may_go_on_at_any_moment_of_a_look(tmp_path, monkeypatch, epochs, folders):
    """Passes that begin and end between two questions are told, each in its turn."""
    moment, at_the_end = 0, False
    while not at_the_end:
        run = Run(tmp_path / str(moment))
        run.epoch(1)
        for folder in folders:
            (run.directory / folder).mkdir()
        follower, listener = _Follower(run.directory), Listener()

        def go_on(call, last=moment, run=run):
            if call == last:
                for epoch in range(2, 2 + epochs):
                    run.epoch(epoch)

        def look(follower=follower, listener=listener):
            listener.hear(follower.look(hurried=False))

        _, asked = meanwhile(monkeypatch, go_on, look)
        at_the_end = asked <= moment
        for _ in range(2):
            listener.hear(follower.look(hurried=True))
        assert_heard(listener, run.history.snapshot())
        moment += 1
    assert moment > 5


@pytest.mark.parametrize("goes_on", ["with an epoch", "from within a pass"])
def test_a_history_read_while_the_run_goes_on_has_no_gap(tmp_path, monkeypatch, goes_on):
    """A pass is there only with all that came before it, and with that as a whole."""
    moment, at_the_end = 0, False
    while not at_the_end:
        run = Run(tmp_path / str(moment), index=False)
        run.epoch(1)
        if goes_on == "from within a pass":
            run.emit(SplitStarted(2, "train", None, 3), run.block(2, "train", 1, 3))

        def go_on(call, last=moment, run=run):
            if call == last and goes_on == "with an epoch":
                run.epoch(2)
            elif call == last:
                run.emit(run.block(2, "train", 4, 2))
                run.emit(SplitEnded(2, "train", 5, {"Loss": 0.5, "Top-1 Accuracy": 1.0}))
                run.emit(SplitStarted(2, "valid", None, 3), run.block(2, "valid", 1, 3))

        record, asked = meanwhile(monkeypatch, go_on, partial(read_record, run.directory, INFOS))
        at_the_end = asked <= moment
        measured = run.history.snapshot()[: len(record)]
        assert [(past.epoch, past.split) for past in record] == [
            (past.epoch, past.split) for past in measured
        ]
        for past, whole in zip(record[:-1], measured, strict=False):
            assert (past.steps, past.finals) == (whole.steps, whole.finals)
        moment += 1
    assert moment > 5


def test_half_a_line_is_held_back(tmp_path):
    log = tmp_path / "train" / "epoch-1" / "Loss.log"
    log.parent.mkdir(parents=True)
    log.write_text("0.5,32\n0.2")
    follower = _Follower(tmp_path)
    listener = Listener().hear(follower.look(hurried=True))
    assert listener.values(1, "train", "Loss").tolist() == [0.5]
    with log.open("a") as file:
        file.write("5,32\n")
    assert listener.hear(follower.look(hurried=True)).values(1, "train", "Loss").tolist() == [0.5, 0.25]


def test_a_step_waits_until_every_metric_has_it(tmp_path):
    folder = tmp_path / "train" / "epoch-1"
    folder.mkdir(parents=True)
    (folder / "Loss.log").write_text("1,1\n2,1\n3,1\n")
    (folder / "Accuracy.log").write_text("10,1\n")
    follower = _Follower(tmp_path)
    (block,) = follower.look(hurried=True)
    assert block.count == 1
    with (folder / "Accuracy.log").open("a") as file:
        file.write("20,1\n30,1\n")
    (block,) = follower.look(hurried=True)
    assert (block.first, block.count) == (2, 2)
    assert block.columns["Accuracy"].values.tolist() == [20, 30]


def test_without_a_header_the_logs_must_have_been_the_same_for_a_moment(tmp_path):
    folder = tmp_path / "train" / "epoch-1"
    folder.mkdir(parents=True)
    (folder / "Loss.log").write_text("1,1\n")
    follower = _Follower(tmp_path)
    assert list(follower.look(hurried=False)) == []
    time.sleep(2 * MOMENT)
    (folder / "Accuracy.log").write_text("10,1\n")
    assert list(follower.look(hurried=False)) == []
    time.sleep(2 * MOMENT)
    (block,) = follower.look(hurried=False)
    assert set(block.columns) == {"Loss", "Accuracy"}


def test_an_announced_metric_is_waited_for(tmp_path):
    infos = (MetricInfo("Loss", "train"), MetricInfo("Top-1 Accuracy", "train"))
    Run(tmp_path, infos=infos)
    folder = tmp_path / "train" / "epoch-1"
    folder.mkdir(parents=True)
    (folder / "Loss.log").write_text("1,1\n")
    follower = _Follower(tmp_path)
    assert list(follower.look(hurried=False)) == list(follower.look(hurried=False)) == []
    (folder / "Top-1_Accuracy.log").write_text("10,1\n")
    (block,) = follower.look(hurried=False)
    assert set(block.columns) == {"Loss", "Top-1 Accuracy"}


def test_a_text_that_looks_like_numbers_stays_a_text(tmp_path):
    infos = (MetricInfo("Loss", "train"), MetricInfo("GPU", "train", kind="text"))
    Run(tmp_path, infos=infos)
    folder = tmp_path / "train" / "epoch-1"
    folder.mkdir(parents=True)
    (folder / "Loss.log").write_text("1,1\n2,1\n")
    (folder / "GPU.log").write_text("3\n4\n")
    (block,) = _Follower(tmp_path).look(hurried=False)
    assert block.texts == {"GPU": ("3", "4")}


def rewound(run, record, epoch, split, step):
    """The event of going back to a position."""
    kept = cut(record, epoch, split, step)
    whole = 0
    while whole < len(kept) and same_pass(record[whole], kept[whole]):
        whole += 1
    return Rewound(epoch, split, step, kept, whole, kept[-1].steps if whole < len(kept) else 0)


def test_a_rewind_is_told_before_other_values_come(tmp_path):
    run = Run(tmp_path)
    run.epoch(1)
    run.emit(SplitStarted(2, "train", None, 3), run.block(2, "train", 1, 6))
    follower = _Follower(tmp_path)
    listener = Listener().hear(follower.look(hurried=True))
    run.emit(rewound(run, run.history.snapshot(), 1, "train", 4))
    run.emit(run.block(1, "train", 5, 9))
    listener.hear(follower.look(hurried=True))
    assert [(back.epoch, back.split) for back in listener.back] == [(1, "train")]
    assert_heard(listener, run.history.snapshot())


def test_a_new_run_in_the_directory_takes_back_everything(tmp_path):
    run = Run(tmp_path)
    run.epoch(1)
    run.epoch(2)
    follower = _Follower(tmp_path)
    listener = Listener().hear(follower.look(hurried=True))
    again = Run(tmp_path, seed=1)
    again.epoch(1)
    listener.hear(follower.look(hurried=True))
    assert listener.back == [TakenBack(1, "train", 0)]
    assert_heard(listener, again.history.snapshot())


def test_logs_copied_over_with_the_same_bytes_are_no_news(tmp_path):
    run = Run(tmp_path)
    run.epoch(1)
    follower = _Follower(tmp_path)
    Listener().hear(follower.look(hurried=True))
    for log in tmp_path.glob("*/epoch-1/*.log"):
        data = log.read_bytes()
        log.unlink()
        log.write_bytes(data)
    assert list(follower.look(hurried=True)) == []
    run.epoch(2)
    assert len(list(follower.look(hurried=True))) == 4


operations = st.lists(
    st.one_of(
        st.tuples(st.just("block"), st.integers(1, 5)),
        st.tuples(st.just("end"), st.just(0)),
        st.tuples(st.just("back"), st.integers(0, 20)),
        st.tuples(st.just("look"), st.just(0)),
    ),
    max_size=25,
)


@settings(max_examples=80)
@given(program=operations)
def test_whatever_a_run_does_the_listener_knows_what_was_measured(program, tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    run = Run(directory)
    follower, listener = _Follower(directory), Listener()
    epoch, split, step = 1, "train", 0
    run.emit(SplitStarted(1, "train", None, 3))
    for verb, number in program:
        if verb == "block":
            run.emit(run.block(epoch, split, step + 1, number))
            step += number
        elif verb == "end" and step:
            finals = {"Loss": float(step), "Top-1 Accuracy": 1.0}
            if split == "valid":
                del finals["Top-1 Accuracy"]
            run.emit(SplitEnded(epoch, split, step, finals))
            epoch, split, step = (epoch, "valid", 0) if split == "train" else (epoch + 1, "train", 0)
            run.emit(SplitStarted(epoch, split, None, 3))
        elif verb == "back":
            record = run.history.snapshot()
            places = [(p.epoch, p.split, s) for p in record for s in range(1, p.steps + 1)]
            if places:
                epoch, split, step = places[number % len(places)]
                event = rewound(run, record, epoch, split, step)
                run.history.restore(event.record)
                run.emit(event)
        elif verb == "look":
            listener.hear(follower.look(hurried=True))
    listener.hear(follower.look(hurried=True))
    listener.hear(follower.look(hurried=True))
    assert_heard(listener, tuple(past for past in run.history.snapshot() if past.blocks))


WRITER = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from artifacts_run import Run
run = Run(Path(sys.argv[1]))
for epoch in range(1, 6):
    run.epoch(epoch, blocks=40, steps=25)
run.status("finished", 6)
print(float(sum(run.history.values("Loss", "train"))))
"""


def test_a_run_in_another_process_is_followed_to_the_last_bit(tmp_path):
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", WRITER, str(tmp_path / "run"), here]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    listener = Listener().hear(follow(tmp_path / "run", poll=0.002, timeout=20))
    out, _ = process.communicate(timeout=60)
    assert listener.back == []
    artifacts = Artifacts(tmp_path / "run")
    assert_heard(listener, artifacts.history.snapshot())
    heard = [listener.values(epoch, "train", "Loss") for epoch in range(1, 6)]
    assert float(sum(np.concatenate(heard))) == float(out)


def test_a_rewinding_run_in_another_thread_is_followed(tmp_path):
    run = Run(tmp_path)

    def train():
        for round_ in range(30):
            record = run.history.snapshot()
            if record:
                event = rewound(run, record, 1, "train", 1 + round_ % 7)
                run.history.restore(event.record)
                run.emit(event)
                run.emit(run.block(1, "train", event.step + 1, 40))
            else:
                run.emit(SplitStarted(1, "train", None, 3), run.block(1, "train", 1, 40))
            time.sleep(0.005)
        run.status("stopped", 1, 40)

    thread = threading.Thread(target=train)
    thread.start()
    listener = Listener().hear(follow(tmp_path, poll=0.001, timeout=30))
    thread.join()
    assert listener.back
    assert_heard(listener, run.history.snapshot())


def test_following_takes_no_lock_and_writes_nothing(tmp_path):
    run = Run(tmp_path)
    run.epoch(1)
    run.status("finished")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    Listener().hear(Artifacts(tmp_path).follow(timeout=30))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


@pytest.mark.parametrize(("options", "message"), [({"since": "later"}, "since"), ({"poll": 0}, "poll")])
def test_a_wrong_argument_is_named(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        Artifacts(tmp_path).follow(**options)


def test_the_infos_of_a_run_give_names_back(tmp_path):
    run = Run(tmp_path, infos=INFOS)
    run.epoch(1)
    run.status("finished")
    block = next(iter(Artifacts(tmp_path).follow(timeout=30)))
    assert "Top-1 Accuracy" in block.columns
    assert isinstance(run.logs, FileMetricLogger)


def test_a_pass_that_ends_between_two_reads_is_whole(tmp_path, monkeypatch):
    """The log read first lacks what was written while the others were read."""
    run = Run(tmp_path)
    run.emit(SplitStarted(1, "train", None, 3), run.block(1, "train", 1, 3))
    follower = _Follower(tmp_path)
    listener = Listener().hear(follower.look(hurried=True))
    read, seen = Tail.read, []

    def read_late(tail):
        if tail.name == "Loss" and not seen:
            seen.append(tail)
            run.emit(run.block(1, "train", 4, 3))
            run.emit(SplitEnded(1, "train", 6, {"Loss": 0.5, "Top-1 Accuracy": 1.0}))
        return read(tail)

    monkeypatch.setattr(Tail, "read", read_late)
    assert_heard(listener.hear(follower.look(hurried=True)), run.history.snapshot())
    assert seen


def test_a_log_that_is_made_but_still_empty_is_waited_for(tmp_path):
    infos = (MetricInfo("Loss", "train"), MetricInfo("GPU", "train", kind="text"))
    Run(tmp_path, infos=infos)
    folder = tmp_path / "train" / "epoch-1"
    folder.mkdir(parents=True)
    (folder / "Loss.log").write_text("1,1\n")
    (folder / "GPU.log").touch()
    follower = _Follower(tmp_path)
    assert list(follower.look(hurried=False)) == []
    (folder / "GPU.log").write_text("idle\n")
    (block,) = follower.look(hurried=False)
    assert block.texts == {"GPU": ("idle",)}


# However large a log is -------------------------------------------------------------------------------


@pytest.mark.parametrize("ended", [True, False])
def test_a_log_of_any_size_is_handed_out_in_pieces(tmp_path, monkeypatch, ended):
    """Also one that is rewritten meanwhile; of two logs, one is read to its end long before the other."""
    monkeypatch.setattr(log_tail, "_AT_ONCE", 1 << 13)
    monkeypatch.setattr(log_tail, "MOST_ROWS", 1000)
    monkeypatch.setattr(log_tail, "MOST_BYTES", 1 << 14)
    folder = tmp_path / "train" / "epoch-1"
    folder.mkdir(parents=True)
    losses = "".join(f"0.{number:016d},32\n" for number in range(1, 20_001))
    (folder / "Loss.log").write_text(losses + "0.5,final\n" * ended)
    (folder / "Speed.log").write_text("1\n" * (20_000 if ended else 3000))
    if not ended:
        (tmp_path / "train" / "epoch-2").mkdir()
        (tmp_path / "train" / "epoch-2" / "Loss.log").write_text("0.25,32\n")
    heard, largest = Listener(), 0
    for news in follow(tmp_path, timeout=0.5):
        heard.hear([news])
        largest = max(largest, getattr(news, "count", 0))
    blocks = heard.passes[1, "train"]
    assert sum(block.count for block in blocks) == 20_000 and largest < 6000
    values = np.concatenate([block.columns["Loss"].values for block in blocks])
    assert values.tolist() == [number / 1e16 for number in range(1, 20_001)]
    speed = np.concatenate([block.columns["Speed"].values for block in blocks if "Speed" in block.columns])
    assert np.nansum(speed) == (20_000 if ended else 3000)
    assert heard.finals == ({(1, "train"): {"Loss": 0.5}} if ended else {})


def test_what_was_handed_out_is_not_kept(tmp_path):
    path = tmp_path / "Loss.log"
    with path.open("w") as file:
        for _ in range(10):
            file.write("0.7310585786300049,32\n" * 200_000)
    log, told, most = Tail(path, None), 0, 0
    while not log.fill(told):
        most = max(most, log.rows - told)
        log.column(told + 1, log.rows)
        told = log.rows
    assert log.rows == 2_000_000 and most < 600_000
