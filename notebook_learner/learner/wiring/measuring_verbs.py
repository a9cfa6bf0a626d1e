"""The part of a LearnerBuilder that says what is measured, and which samples are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typing_extensions import Self

from ...event import Split
from ...metric.base import AnyMetric, TextMetric
from ...run.settings import AskedSamples, Registered, Settings


class MeasuringVerbs:
    """Verbs that every LearnerBuilder has; a class of their own only because a file has one subject."""

    _settings: Settings

    def metric_train(self, metric: AnyMetric) -> Self:
        """As in Burn: log and show a metric of the training split, without a curve."""
        return self._register(metric, "train", plotted=False)

    def metric_valid(self, metric: AnyMetric) -> Self:
        """As in Burn: log and show a metric of the validation split, without a curve."""
        return self._register(metric, "valid", plotted=False)

    def metric_train_numeric(self, metric: AnyMetric) -> Self:
        """As in Burn: `.metrics(metric, valid=False)`."""
        return self._register(metric, "train", plotted=True)

    def metric_valid_numeric(self, metric: AnyMetric) -> Self:
        """As in Burn: `.metrics(metric, train=False)`."""
        return self._register(metric, "valid", plotted=True)

    def metrics(self, *metrics: AnyMetric, train: bool = True, valid: bool = True) -> Self:
        """Measure these metrics: log and show them, and plot those that are numbers. Texts and pictures, such
        as `ConfusionMatrix()`, are registered in the same way. May be called several times.

        A learner without a registered metric measures `Loss()` on both splits; `metrics()` without arguments
        means no metrics at all.

        >>> from notebook_learner import LearnerBuilder
        >>> from notebook_learner.metric import Accuracy, ConfusionMatrix, LearningRate, Loss
        >>> builder = LearnerBuilder("runs/digits").metrics(Loss(), Accuracy())
        >>> builder = builder.metrics(LearningRate(), valid=False).metrics(ConfusionMatrix(), train=False)

        Args:
            metrics: metrics of the package, or your own.
            train: False leaves the training split out.
            valid: False leaves the validation split out.
        """
        self._settings.metrics_given = True
        self._settings.narrowed.append((train, valid))
        splits: dict[Split, Any] = {"train": train, "valid": valid}
        for metric in metrics:
            for split in (each for each, wanted in splits.items() if wanted):
                self._register(metric, split, plotted=not isinstance(metric, TextMetric))
        return self

    def samples(
        self, loader: Any, n: int = 8, *, labels: Sequence[str] | None = None, tokenizer: Any = None
    ) -> Self:
        """Show what the model says of the same few samples after each epoch, and when the training pauses:
        pictures, texts or numbers, with target, prediction and loss, in a tab of the panel.

        The first n samples of the loader are read once. Then the validation step runs on them, without
        gradients and in eval mode. The training goes on as if nothing had happened, to the bit; each time
        costs a copy of the weights and one small batch. On several devices rank 0 does it alone. The panel
        keeps the last 20 of them, so going back shows what was shown there; files keep none, and a detached
        run shows none until you take it back.

        >>> from notebook_learner import LearnerBuilder
        >>> batches = [([[0.1, 0.9]], [1])]
        >>> builder = LearnerBuilder("runs/digits").samples(batches, n=4, labels=["cat", "dog"])

        Args:
            loader: any iterable of batches, such as the validation loader; or a dataset if the learner has a
                batch size.
            n: how many samples.
            labels: the classes' names, in the order of their indices.
            tokenizer: for token numbers: an object with a `decode`, or a function from numbers to text.
        """
        self._settings.samples = AskedSamples(loader, n, labels, tokenizer)
        return self

    def _register(self, metric: AnyMetric, split: Split, *, plotted: bool) -> Self:
        self._settings.metrics_given = True
        self._settings.metrics.append(Registered(metric, split, plotted))
        return self
