"""Lines for pipes, CI and notebooks."""

from __future__ import annotations

import io
import os
import sys

import pytest
from renderer_run import (
    METRICS,
    block,
    finals,
    one_epoch,
    one_pass,
    opened,
    play,
    record_of,
    status,
    whole_run,
)

from notebook_learner.event import EpochEnded, MetricInfo, Notice, Rewound, SplitEnded, SplitStarted
from notebook_learner.renderer import PlainRenderer


def lines_of(events, **options):
    file = io.StringIO()
    play(PlainRenderer(file, **options), events)
    return file.getvalue().splitlines()


def test_a_whole_run_reads_as_a_table_and_a_summary():
    assert "\n".join(lines_of(whole_run())) == (
        "Net · 1,234,567 parameters · 3 epochs · runs/digits\n"
        "                  Loss                Accuracy %\n"
        "  epoch       train      valid       train      valid         time\n"
        "    1/3       1.000      1.500       90.00      85.00       500 ms\n"
        "    2/3      0.5000     0.7500       95.00      92.50       500 ms\n"
        "    3/3      0.3333     0.5000       96.67      95.00       500 ms\n"
        "finished after 1.5 s\n"
        "\n"
        "Net · 1,234,567 parameters\n"
        "  optimizer  Adam\n"
        "  epochs     3 of 3\n"
        "\n"
        "Split  Metric       Min.  Epoch     Max.  Epoch\n"
        "-----  --------  -------  -----  -------  -----\n"
        "train  Accuracy  90.00 %      1  96.67 %      3\n"
        "train  Loss       0.3333      3    1.000      1\n"
        "valid  Accuracy  85.00 %      1  95.00 %      3\n"
        "valid  Loss       0.5000      3    1.500      1\n"
    )


def test_a_run_without_validation_has_no_column_for_it_until_it_validates():
    first = [*one_pass(1, "train"), EpochEnded(1, 3)]
    lines = lines_of([opened(), status("running"), *first, *one_epoch(2), *one_epoch(3)])
    assert lines[1:] == [
        "            Loss      Accuracy %",
        "  epoch       train        train         time",
        "    1/3       1.000        90.00       400 ms",
        "                  Loss                Accuracy %",
        "  epoch       train      valid       train      valid         time",
        "    2/3      0.5000     0.7500       95.00      92.50       500 ms",
        "    3/3      0.3333     0.5000       96.67      95.00       500 ms",
    ]


def test_building_a_learner_writes_nothing():
    assert lines_of([opened()]) == []


def test_a_long_epoch_says_where_it_is():
    lines = lines_of([opened(), status("running"), *one_pass(1, "train")[:3]], progress_seconds=0)
    assert lines[-1] == (
        "  epoch 1, train, step 20 of 40 (50 %) · so far: Loss 1.000 · Accuracy 90.00 % · 100 steps/s"
        " · < 1 s left"
    )


def test_a_short_epoch_is_not_interrupted_by_progress():
    lines = lines_of(whole_run())
    assert not [line for line in lines if "steps/s" in line]


def test_a_loader_of_unknown_length_has_progress_without_a_share():
    events = [opened(), status("running", total=None), SplitStarted(1, "train", None, 3), block(1)]
    assert lines_of(events, progress_seconds=0)[-1] == (
        "  epoch 1, train, step 10 · so far: Loss 1.000 · Accuracy 90.00 % · 100 steps/s"
    )


def test_pauses_failures_and_notices_are_lines():
    lines = lines_of(
        [
            opened(),
            status("running"),
            block(1),
            Notice("scheduler steps per epoch"),
            Notice("3 workers died", "warning"),
            status("paused", step=10, reason="pause was pressed"),
            status("running", step=10),
            status("failed", step=10, reason="RuntimeError: no\nmemory"),
        ]
    )
    assert lines[1:] == [
        "scheduler steps per epoch",
        "warning: 3 workers died",
        "paused at epoch 1, train, step 10 of 40: pause was pressed",
        "failed at epoch 1, train, step 10 of 40: RuntimeError: no memory",
    ]


def test_a_pause_shows_the_summary_only_when_a_pass_ended_since():
    stepping = [status("paused", 2, step=3), status("running", 2, step=3), status("paused", 2, step=4)]
    lines = lines_of([opened(), status("running"), *one_epoch(1), *stepping])
    assert len([line for line in lines if line.startswith("Split ")]) == 1


def test_a_rewind_takes_its_epochs_out_of_the_summary():
    events = [opened(), status("running"), *one_epoch(1), *one_epoch(2)]
    events.append(Rewound(2, "train", 10, (record_of(1), record_of(1, "valid", 10)), 2, 0, "rewind(30)"))
    lines = lines_of([*events, status("stopped", 2, "train", 10)])
    assert "now at epoch 2, train, step 10 of 40: rewind(30)" in lines
    assert ["train", "Loss", "1.000", "1", "1.000", "1"] in [line.split() for line in lines]


def test_headings_come_again_before_they_leave_the_screen():
    events = [opened(60)] + [event for epoch in range(1, 61) for event in one_epoch(epoch, 60)]
    assert len([line for line in lines_of(events) if line.endswith("time")]) == 3


def test_columns_stay_aligned_whatever_the_numbers():
    events = [opened(12)]
    for epoch, loss in ((1, 1.234e-7), (2, float("nan")), (3, -4.2e11), (12, 123456.0)):
        for split in ("train", "valid"):
            events.append(SplitEnded(epoch, split, 1, {"Loss": loss, "Accuracy": 100.0}))
        events.append(EpochEnded(epoch, 12))
    rows = lines_of(events)[1:]
    assert len({len(row) for row in rows}) == 1


def test_a_run_without_metrics_still_counts_its_epochs():
    events = [
        opened(metrics=()),
        SplitStarted(1, "train", 1, 3),
        SplitEnded(1, "train", 1, {}),
        EpochEnded(1, 3),
    ]
    assert [line.split() for line in lines_of([*events, status("finished")])[2:]] == [
        ["epoch", "time"],
        ["1/3", "0", "ms"],
        ["finished"],
    ]


def test_only_metrics_registered_as_numeric_have_columns():
    lines = lines_of(whole_run(metrics=(*METRICS, MetricInfo("CPU", "train", "%", plotted=False))))
    assert not [line for line in lines if "Learning Rate" in line or "CPU" in line]


def test_names_with_markup_stay_text():
    name = "[red]x[/red] <img onerror>"
    file = io.StringIO()
    play(
        PlainRenderer(file, progress_seconds=0),
        [opened(metrics=(MetricInfo(name, "train"),)), block(1, names=[name])],
    )
    assert f"{name} 1.000" in file.getvalue()


def test_a_terminal_code_in_a_name_does_not_reach_the_terminal():
    lines = lines_of([opened(model="Net\x1b[2J\nfake line"), status("running")])
    assert lines == ["Net[2J fake line · 1,234,567 parameters · 3 epochs · runs/digits"]


@pytest.mark.parametrize(
    ("encoding", "dot", "beta"), [("ascii", "|", "?"), ("latin-1", "·", "?"), ("utf-8", "·", "β")]
)
def test_a_stream_that_cannot_write_a_character_gets_a_likeness(encoding, dot, beta):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, newline="\n")
    play(PlainRenderer(file), [opened(model="Net"), status("running"), opened(model="β"), status("running")])
    first, second = raw.getvalue().decode(encoding).splitlines()
    assert first.startswith(f"Net {dot} 1,234,567")
    assert second.startswith(f"{beta} ")
    file.close()


def test_a_reader_that_left_does_not_stop_the_training():
    reading, writing = os.pipe()
    os.close(reading)
    file = os.fdopen(writing, "w")
    play(PlainRenderer(file), whole_run())
    with pytest.raises(BrokenPipeError):
        file.close()


def test_a_closed_file_and_a_missing_stdout_do_not_stop_the_training(monkeypatch):
    file = io.StringIO()
    file.close()
    play(PlainRenderer(file), whole_run())
    monkeypatch.setattr(sys, "stdout", None)
    play(PlainRenderer(), whole_run())


def test_standard_output_is_looked_up_at_every_line(capsys):
    play(PlainRenderer(), [opened(), status("running")])
    assert capsys.readouterr().out.startswith("Net · ")


def test_every_line_is_flushed():
    class File(io.StringIO):
        flushed = 0

        def flush(self):
            self.flushed = len(self.getvalue())

    file = File()
    play(PlainRenderer(file), whole_run())
    assert file.flushed == len(file.getvalue())


def test_an_event_of_an_unknown_kind_is_ignored():
    assert lines_of([opened(), object()]) == []


def test_finals_come_from_the_run_and_not_from_the_average_of_its_steps():
    events = [
        opened(),
        SplitStarted(1, "train", 10, 3),
        block(1),
        SplitEnded(1, "train", 10, {**finals(1, "train"), "Loss": 7.0}),
    ]
    assert "7.000" in lines_of([*events, EpochEnded(1, 3)])[-1]
