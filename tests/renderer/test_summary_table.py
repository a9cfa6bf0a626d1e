"""The table at the end of a run."""

from __future__ import annotations

import io

import numpy as np
from renderer_history import FakeHistory, made_up
from rich.console import Console

from notebook_learner.event import MetricInfo
from notebook_learner.logger.history import History
from notebook_learner.renderer import Summary, SummaryRow, summary_rows

SETTINGS = {"optimizer": "Adam", "batch size": "32"}


def history_of(**finals):
    return FakeHistory(
        {"train": [1] * 3, "valid": [1] * 3},
        final={
            (name, split): np.array(values) for name, by in finals.items() for split, values in by.items()
        },
    )


def test_rows_tell_the_extremes_and_where_they_were():
    history = history_of(Loss={"train": [3.0, 1.0, 2.0], "valid": [1.0, 1.0, 5.0]})
    assert summary_rows(history) == [
        SummaryRow("train", "Loss", 1.0, 2, 3.0, 1),
        SummaryRow("valid", "Loss", 1.0, 1, 5.0, 3),
    ]


def test_rows_are_sorted_by_split_and_then_by_name():
    history = history_of(
        loss={"valid": [1.0], "train": [1.0]}, Accuracy={"train": [1.0]}, Zeta={"train": [1.0]}
    )
    assert [(row.split, row.metric) for row in summary_rows(history)] == [
        ("train", "Accuracy"),
        ("train", "loss"),
        ("train", "Zeta"),
        ("valid", "loss"),
    ]


def test_only_plotted_metrics_have_rows():
    history = history_of(Loss={"train": [1.0]}, CPU={"train": [1.0]})
    infos = [MetricInfo("Loss", "train", "nats"), MetricInfo("CPU", "train", plotted=False)]
    assert [(row.metric, row.unit) for row in summary_rows(history, infos)] == [("Loss", "nats")]


def test_nan_never_wins_and_a_metric_that_was_never_a_number_says_so():
    history = history_of(Loss={"train": [np.nan, 2.0, np.nan]}, AUROC={"train": [np.nan] * 3})
    auroc, loss = summary_rows(history)
    assert (loss.minimum, loss.minimum_epoch) == (2.0, 2)
    assert auroc.cells() == ("train", "AUROC", "NaN", "-", "NaN", "-")


def test_it_reads_the_history_that_learners_keep():
    from renderer_run import play, whole_run

    history = History()
    play(history, whole_run())
    rows = {(row.split, row.metric): row for row in summary_rows(history, whole_run()[0].metrics)}
    assert (rows["valid", "Accuracy"].maximum, rows["valid", "Accuracy"].maximum_epoch) == (95.0, 3)
    assert list(rows) == [("train", "Accuracy"), ("train", "Loss"), ("valid", "Accuracy"), ("valid", "Loss")]


def test_it_prints_as_an_aligned_table():
    text = str(Summary("Net", 1, SETTINGS, summary_rows(made_up(2, 3, ("Loss",)))))
    assert text == repr(Summary("Net", 1, SETTINGS, summary_rows(made_up(2, 3, ("Loss",)))))
    head, first, second, _, *table = text.splitlines()
    assert [head, first, second] == ["Net · 1 parameter", "  optimizer   Adam", "  batch size  32"]
    assert table[0].split() == ["Split", "Metric", "Min.", "Epoch", "Max.", "Epoch"]
    assert len({len(line) for line in table}) == 1


def test_before_the_first_epoch_it_says_so():
    empty = Summary("Net", 10)
    assert str(empty).endswith("no epoch has finished yet")
    assert "no epoch has finished yet" in empty._repr_html_()
    assert "<table>" not in empty._repr_html_()


def test_html_holds_names_as_text():
    evil = "<img src=x onerror=alert(1)>"
    html = Summary(evil, 1, {evil: evil}, [SummaryRow("train", evil, 1.0, 1, 2.0, 2, evil)])._repr_html_()
    assert "<img" not in html
    assert html.count("&lt;img") == 6


def test_rich_holds_names_as_text_and_breaks_no_line_at_100():
    console = Console(file=io.StringIO(), width=100)
    rows = [SummaryRow("train", "[red]x[/red]", 1.0, 1, 2.0, 2, "[b]")]
    console.print(Summary("[/oops]", 1, {"[a]": "[/b]"}, rows))
    text = console.file.getvalue()
    assert "[/oops] · 1 parameter" in text
    assert "[a]  [/b]" in text
    assert "train  [red]x[/red]  1.000 [b]      1  2.000 [b]      2" in text
