"""Figures: what is drawn, not how it looks (that was looked at)."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from renderer_history import KINDS, FakeHistory, made_up
from renderer_run import play, whole_run

from notebook_learner.event import MetricInfo
from notebook_learner.logger.history import History
from notebook_learner.renderer import plot
from notebook_learner.renderer.curves import Curve, limits, spread_ticks, training_axis

HERE = Path(__file__).parent
PNG = b"\x89PNG\r\n\x1a\n"


def line(ax, marker):
    """The line with this marker that has the most points."""
    return max((one for one in ax.lines if one.get_marker() == marker), key=lambda one: len(one.get_xdata()))


def png(figure):
    data, _ = figure._repr_png_()
    return data


@pytest.mark.parametrize(
    "history",
    [made_up(1, 240), made_up(10, 24), made_up(2, 1), made_up(30, 30, tuple(KINDS)), FakeHistory()],
    ids=["one epoch", "ten epochs", "single steps", "five metrics", "nothing"],
)
@pytest.mark.parametrize("dark", [False, True])
def test_every_history_gives_a_picture(history, dark):
    assert png(plot(history, dark=dark)).startswith(PNG)


def test_a_notebook_shows_it_sharp_and_at_its_own_size():
    data, size = plot(made_up(2, 10))._repr_png_()
    width = int.from_bytes(data[16:20], "big")
    assert width == 2 * size["width"]


def test_one_panel_a_metric_named_by_it():
    figure = plot(made_up(3, 10, ("Loss", "Accuracy", "Learning Rate")))
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["Loss", "Accuracy", "Learning Rate"]


def test_of_very_many_metrics_the_first_are_drawn_and_the_figure_says_so():
    names = [f"metric {number}" for number in range(200)]
    figure = plot(made_up(1, 2, tuple(names)))
    assert [ax.get_title(loc="left") for ax in figure.axes] == names[:60]
    assert figure.get_suptitle() == "60 of 200 metrics; name others: plot(['metric 60', ...])"
    assert png(figure).startswith(PNG)
    assert len(plot(made_up(1, 2, tuple(names)), names[60:130]).axes) == 70  # asked for by name


def test_training_is_drawn_over_the_steps_of_the_whole_run():
    history = made_up(3, 10, ("Loss",))
    (ax,) = plot(history).axes
    curve = line(ax, ".")
    np.testing.assert_array_equal(curve.get_xdata(), np.arange(1, 31))
    np.testing.assert_array_equal(curve.get_ydata(), history.data["Loss", "train"])


def test_validation_stands_at_the_step_where_it_took_place():
    history = made_up(3, 10, ("Loss",))
    (ax,) = plot(history).axes
    np.testing.assert_array_equal(line(ax, "s").get_xdata(), [10, 20, 30])
    np.testing.assert_array_equal(line(ax, "s").get_ydata(), history.final["Loss", "valid"])


def test_the_legend_tells_train_from_valid_without_colours():
    (ax,) = plot(made_up(3, 10, ("Loss",))).axes
    train, valid = ax.get_legend().get_lines()
    assert train.get_linestyle() != valid.get_linestyle()
    assert train.get_marker() != valid.get_marker()


def test_the_legend_tells_the_last_and_the_best_value():
    history = made_up(3, 10, ("Accuracy",))
    history.final["Accuracy", "train"] = np.array([1.0, 2.0, 3.0])
    history.final["Accuracy", "valid"] = np.array([10.0, 30.0, 20.0])
    (ax,) = plot(history).axes
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == ["train avg 3.000 %", "valid avg 20.00 % (best 30.00)"]


def test_a_spike_among_a_hundred_thousand_points_is_drawn_and_named():
    history = made_up(10, 10_000, ("Loss",))
    history.data["Loss", "train"][61_234] = 5000.0
    (ax,) = plot(history).axes
    assert max(np.nanmax(one.get_ydata()) for one in ax.lines) == 5000.0
    assert ax.get_ylim()[1] < 10
    assert "5,000" in [text.get_text() for text in ax.texts]
    assert sum(len(one.get_xdata()) for one in ax.lines) < 6000


def test_thinning_keeps_the_lowest_and_highest_value_of_every_stretch():
    random = np.random.default_rng(0)
    y = random.standard_normal(100_003)
    curve = Curve.of(np.arange(len(y), dtype=float), y)
    thin = curve.thin(2000)
    assert len(thin) <= 2002
    assert (thin.y.min(), thin.y.max()) == (y.min(), y.max())
    assert (thin.x[0], thin.x[-1]) == (0, len(y) - 1)
    assert (np.diff(thin.x) > 0).all()


@pytest.mark.parametrize("size", [0, 1, 2, 1999, 2000, 2001, 4001])
def test_thinning_works_at_every_size(size):
    curve = Curve.of(np.arange(size, dtype=float), np.arange(size, dtype=float)).thin(2000)
    assert len(curve) <= 2002
    assert len(curve.smooth(0.5)) == len(curve)


def test_a_stretch_of_nan_interrupts_the_line_also_when_thinned():
    y = np.ones(50_000)
    y[20_000:30_000] = np.nan
    x, drawn = Curve.of(np.arange(50_000.0), y).thin().broken()
    gap = np.flatnonzero(np.isnan(drawn))
    assert len(gap) == 1
    assert x[gap - 1] < 20_000
    assert x[gap + 1] >= 30_000


def test_a_metric_with_a_value_at_every_fourth_step_has_no_gaps():
    y = np.where(np.arange(100) % 4 == 3, 1.0, np.nan)
    _, drawn = Curve.of(np.arange(100.0), y).broken()
    assert len(drawn) == 25
    assert np.isfinite(drawn).all()


def test_a_nan_epoch_interrupts_the_validation_line():
    history = made_up(5, 10, ("Loss",))
    history.final["Loss", "valid"][2] = np.nan
    (ax,) = plot(history).axes
    assert np.isnan(line(ax, "s").get_ydata()[2])
    assert png(ax.figure).startswith(PNG)


def test_values_that_are_all_nan_or_infinite_do_not_break_the_picture():
    history = made_up(2, 10)
    history.data["Loss", "train"][:] = np.nan
    history.data["Accuracy", "train"][:] = np.inf
    for key in history.final:
        history.final[key][:] = np.nan
    assert png(plot(history)).startswith(PNG)


def test_smoothing_follows_the_trend_and_keeps_a_straight_line_straight():
    x = np.arange(1000.0)
    smooth = Curve.of(x, 3 * x + np.where(x % 2, 50, -50)).smooth(0.1)
    assert np.abs(smooth.y - 3 * x)[40:-40].max() < 2
    np.testing.assert_allclose(Curve.of(x, 3 * x).smooth(0.1).y[50:-50], 3 * x[50:-50])


def test_noise_is_smoothed_by_default_and_a_schedule_is_not():
    noisy, schedule = plot(made_up(10, 100, ("Loss", "Learning Rate"))).axes
    assert len([one for one in noisy.lines if len(one.get_xdata()) > 100]) == 2
    assert len([one for one in schedule.lines if len(one.get_xdata()) > 100]) == 1
    (raw,) = plot(made_up(10, 100, ("Loss",)), smoothing=0).axes
    assert len([one for one in raw.lines if len(one.get_xdata()) > 100]) == 1


def test_a_few_far_values_do_not_set_the_scale_but_an_ordinary_range_does():
    y = np.linspace(2, 0, 1000)
    assert limits(y) is None
    y[500] = -1e9
    low, high = limits(y)
    assert -2 < low < 0
    assert high >= 2
    assert limits(np.ones(1000)) is None


def test_epoch_ticks_are_round_and_few():
    assert spread_ticks({epoch: 10.0 * epoch for epoch in range(1, 101)}, most=7)[0] == (20, 200.0)
    assert spread_ticks({1: 90.0, 2: 101.0}, most=7) == [(1, 90.0)]  # labels would touch
    assert len(spread_ticks({epoch: 10.0 * epoch for epoch in range(1, 8)}, most=7)) == 7
    assert spread_ticks({1: 5.0, 2: 10.0}, most=7) == [(1, 5.0), (2, 10.0)]
    assert spread_ticks({}, most=7) == []
    assert spread_ticks({7: 70.0}, most=7) == [(7, 70.0)]


def test_epochs_of_unequal_length_are_numbered_through():
    axis = training_axis(np.array([1, 1, 2, 2, 2, 4]), np.array([1, 2, 1, 2, 3, 1]))
    np.testing.assert_array_equal(axis.steps, [1, 2, 3, 4, 5, 6])
    assert axis.ends == {1: 2, 2: 5, 4: 6}


def test_metrics_can_be_chosen_and_an_unknown_one_is_told_what_there_is():
    history = made_up(2, 10)
    assert len(plot(history, "Accuracy").axes) == 1
    assert [ax.get_title(loc="left") for ax in plot(history, ["Accuracy", "Loss"]).axes] == [
        "Accuracy",
        "Loss",
    ]
    with pytest.raises(ValueError, match="no metric 'Lose'; this history has 'Loss', 'Accuracy'"):
        plot(history, "Lose")


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, float("nan")])
def test_a_smoothing_out_of_range_is_refused(smoothing):
    with pytest.raises(ValueError, match="smoothing must be from 0"):
        plot(made_up(1, 10), smoothing=smoothing)


def test_metrics_that_are_not_plotted_are_left_out_unless_asked_for():
    history = made_up(2, 10)
    history.infos = tuple(
        MetricInfo(info.name, info.split, plotted=info.name == "Loss") for info in history.infos
    )
    assert len(plot(history).axes) == 1
    assert len(plot(history, ["Accuracy"]).axes) == 1


def test_names_are_text_and_not_formulas():
    for name in ("$\\frac{", "_hidden", "Präzision 日本語 @ 0.5", "[red]x[/red]"):
        history = made_up(2, 10, ("Loss",))
        for kind in (history.data, history.final):
            for split in ("train", "valid"):
                kind[name, split] = kind.pop(("Loss", split))
        history.infos = (MetricInfo(name, "train", "$\\x"), MetricInfo(name, "valid", "$\\x"))
        figure = plot(history)
        assert figure.axes[0].get_title(loc="left") == name
        assert png(figure).startswith(PNG)


def test_it_draws_the_history_that_learners_keep():
    history = History()
    play(history, whole_run())
    loss, accuracy = plot(history, infos=whole_run()[0].metrics).axes
    np.testing.assert_array_equal(line(loss, "s").get_xdata(), [40, 80, 120])
    assert accuracy.get_title(loc="left") == "Accuracy"
    assert png(loss.figure).startswith(PNG)


def test_a_run_that_only_validates_is_drawn_by_epochs():
    history = FakeHistory({"train": [], "valid": [1, 1]}, final={("Loss", "valid"): np.array([2.0, 1.0])})
    (ax,) = plot(history).axes
    np.testing.assert_array_equal(line(ax, "s").get_xdata(), [1, 2])
    assert ax.get_xlabel() == "epoch"


def test_neither_pyplot_nor_the_users_settings_are_touched():
    script = """
import sys
import matplotlib
sys.path.insert(0, sys.argv[1])
from renderer_history import made_up
from notebook_learner.renderer import plot

def settings():
    # to read the backend is what loads pyplot
    return {key: matplotlib.rcParams[key] for key in matplotlib.rcParams if not key.startswith("backend")}

before = settings()
plot(made_up(2, 10))._repr_png_()
print("matplotlib.pyplot" in sys.modules, settings() == before)
"""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(HERE)], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["False", "True"]


def test_a_million_points_are_drawn_in_about_a_second():
    history = made_up(1, 10, ("Loss",))
    y = np.random.default_rng(0).standard_normal(1_000_000)
    history.data["Loss", "train"] = y
    where = np.empty(len(y), dtype=[("epoch", np.int64), ("step", np.int64)])
    where["epoch"], where["step"] = 1, np.arange(1, len(y) + 1)
    history.steps = lambda split: where
    start = time.perf_counter()
    assert png(plot(history)).startswith(PNG)
    assert time.perf_counter() - start < 5  # 0.6 s where this was written; generous for a busy machine
