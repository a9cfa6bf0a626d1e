"""What text metrics and metrics of sequences tell is the same in logs, history, HDF5 and panel."""

from __future__ import annotations

import h5py
import pytest
import torch
import torch.nn.functional as F
from builder_support import quiet
from torch import nn

from notebook_learner import Artifacts, SequenceOutput
from notebook_learner.metric import (
    Accuracy,
    BleuScore,
    CharErrorRate,
    Loss,
    MetricGroup,
    Perplexity,
    Prediction,
    RougeLScore,
    TextMetric,
    WordErrorRate,
)
from notebook_learner.widget.board import Board

VOCABULARY, PAD, STEPS = 6, 0, 5


class Mood(TextMetric):
    """A user's own, with all that a page and a file could stumble over."""

    name = "Mood <b>"

    def text(self):
        return f"<i>{self.context.samples} samples</i>\nsecond line ü 🙂"


def letters(tokens):
    return "".join(chr(96 + token) for token in tokens)


class Speller(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = nn.Embedding(VOCABULARY, VOCABULARY)

    def train_step(self, batch):
        logits = self.scores(batch)
        loss = F.cross_entropy(logits.movedim(-1, 1), batch, ignore_index=PAD)
        return SequenceOutput(loss, logits, batch, ignore_index=PAD)

    valid_step = train_step


def sentences(steps=STEPS):
    source = torch.Generator().manual_seed(0)
    batches = [torch.randint(1, VOCABULARY, (4, 7), generator=source) for _ in range(steps)]
    for batch in batches:
        batch[1, 3:] = PAD
    return [*batches[:-1], batches[-1][:1]]  # the last batch is a single sample


def speller(directory):
    torch.manual_seed(0)
    model = Speller()
    builder = (
        quiet(directory)
        .metrics(Loss(), Accuracy(), Perplexity(), CharErrorRate(letters), WordErrorRate(), BleuScore())
        .metrics(RougeLScore())
        .metric_train(Mood())
        .metric_train(Prediction(letters))
        .metric_valid(Prediction(letters))
        .num_epochs(2)
        .with_file_checkpointer()
    )
    return builder, model, torch.optim.SGD(model.parameters(), lr=0.5)


@pytest.fixture
def board():
    return Board()


def trained(directory, board):
    builder, model, optimizer = speller(directory)
    learner = builder.renderer(board).build(model, optimizer)
    learner.fit(sentences(), sentences())
    return learner


def test_texts_reach_log_history_hdf5_and_panel(tmp_path, board):
    learner = trained(tmp_path, board)
    mood = "<i>1 samples</i> second line ü 🙂"
    lines = (tmp_path / "train/epoch-2/Mood_<b>.log").read_text("utf-8").splitlines()
    assert len(lines) == STEPS
    assert lines[-1] == mood
    samples = (tmp_path / "train/epoch-2/Prediction.log").read_text("utf-8").splitlines()
    assert samples == learner.history.texts("Prediction", "train", 2)
    target = letters(sentences()[-1][0].tolist())
    assert samples[-1].endswith(f" (target: {target})")

    assert len(learner.history.texts("Mood <b>", "train")) == 2 * STEPS
    assert (
        learner.history.texts("Mood <b>", "train", 2)[-1].splitlines()
        == mood.replace("</i> ", "</i>\n").splitlines()
    )
    later = Artifacts(tmp_path).history
    assert later.texts("Prediction", "train") == learner.history.texts("Prediction", "train")
    assert later.texts("Mood <b>", "train", 2) == lines

    with h5py.File(tmp_path / "artifacts.h5") as file:
        series = file["series/train"]
        (name,) = [name for name in series if name.startswith("Mood")]
        assert series[name]["text"].asstr()[:].tolist()[-1].split() == mood.split()
        assert series["Prediction"]["text"].asstr()[:].tolist()[-1] == samples[-1]

    told = dict(board.moving()["texts"])
    assert told["Mood <b>"] == mood
    assert told["Prediction"] == learner.history.texts("Prediction", "valid")[-1]


def test_numbers_of_sequences_are_the_same_everywhere(tmp_path, board):
    learner = trained(tmp_path, board)
    names = ["Loss", "Accuracy", "Perplexity", "CER", "WER", "BLEU-4", "ROUGE-L"]
    assert list(learner.history.metrics("valid"))[: len(names)] == names
    later = Artifacts(tmp_path).history
    with h5py.File(tmp_path / "artifacts.h5") as file:
        for name in names:
            log = (tmp_path / f"valid/epoch-2/{name}.log").read_text().splitlines()
            final = learner.history.final(name, "valid", 2)
            assert log[-1] == f"{final:g},final" or float(log[-1].split(",")[0]) == final
            steps = [[float(part) for part in line.split(",")] for line in log[:-1]]
            assert [value for value, _ in steps] == learner.history["valid", name, 2].tolist()
            assert [weight for _, weight in steps] == learner.history.weights(name, "valid", 2).tolist()
            assert later["valid", name, 2].tolist() == [value for value, _ in steps]
            assert later.final(name, "valid", 2) == final
            assert file[f"series/valid/{name}/value"][-STEPS:].tolist() == [value for value, _ in steps]


def test_a_text_that_was_never_told_is_said_with_those_that_were(tmp_path, board):
    learner = trained(tmp_path, board)
    with pytest.raises(KeyError, match="no text metric 'Loss' in train; there are: Mood <b>, Prediction"):
        learner.history.texts("Loss", "train")


def test_a_run_resumed_in_mid_epoch_has_the_values_of_one_that_was_not(tmp_path, board):
    whole = trained(tmp_path / "whole", board)
    for at in (2, STEPS, STEPS + 3, 2 * STEPS + 1, 3 * STEPS + 2):
        directory = tmp_path / f"cut-{at}"
        builder, model, optimizer = speller(directory)
        first = builder.build(model, optimizer, None, sentences(), sentences())
        first.step(at) if at else None
        first.save()
        first._replica.saving.close()
        builder, model, optimizer = speller(directory)
        second = builder.checkpoint("latest").build(model, optimizer, None, sentences(), sentences())
        second.fit()
        for split in ("train", "valid"):
            for name in whole.history.metrics(split):
                assert (
                    second.history.epochs(name, split).tolist() == whole.history.epochs(name, split).tolist()
                )
                assert second.history[split, name].tolist() == whole.history[split, name].tolist()


class Reads(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes every operation that waits for the device."""

    WAITING = ("_local_scalar_dense", "item", "nonzero", "_to_copy", "unique", "masked_select", "equal")

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.__name__.split(".")[0]
        copies_away = name == "_to_copy" and "device" in (kwargs or {})
        if name in self.WAITING and (name != "_to_copy" or copies_away):
            self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


def test_ten_metrics_wait_for_the_device_in_no_step():
    metrics = [
        Loss(), Accuracy(), Accuracy(PAD, input=lambda item: (item.logits, item.targets)), Perplexity(),
        CharErrorRate(letters), WordErrorRate(), BleuScore(), RougeLScore(), Prediction(letters), Mood(),
    ]  # fmt: skip
    metrics[2].name = "Accuracy 2"
    group = MetricGroup(metrics)
    model = Speller()
    outputs = [model.train_step(batch) for batch in sentences()]
    group.attach(type("Context", (), {"samples": 4, "output": outputs[-1]})())
    with Reads() as reads:
        for output in outputs:
            group.collect(output)
    assert reads.seen == []
    with Reads() as reads:
        group.read()
    assert reads.seen != []  # this is where it waits, so a wait in a step would have been seen
