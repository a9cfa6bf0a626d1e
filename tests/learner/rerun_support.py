"""What the tests of running the builder's cell again share."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from pathlib import Path

from builder_support import batches, classifier, net, sgd


def builder_in(directory, *, epochs=1, files=False):
    builder = classifier(directory).num_epochs(epochs).seed(4).with_application_logger(True)
    return builder.with_file_checkpointer() if files else builder


def built(builder, seed=0, data=True):
    model = net(seed=seed)
    return builder.build(model, sgd(model), None, *([batches()] if data else []))


def a_run_in(directory, *, epochs=1, files=False):
    """A run that is over, every byte of it written."""
    learner = built(builder_in(directory, epochs=epochs, files=files))
    learner.fit()
    learner._replica.saving.close()
    return learner


def tree(directory):
    """Every plain file below, with its bytes; without the one that is there as long as a process listens."""
    found = {}
    for path in sorted(Path(directory).rglob("*")):
        if path.is_file() and not path.is_symlink() and path.name != "control.sock":
            with suppress(FileNotFoundError) if path.suffix == ".tmp" else nullcontext():
                # One under a name of its own may take its place at this moment: a learner's thread writes.
                found[path.relative_to(directory).as_posix()] = path.read_bytes()
    return found


def without_the_log(files):
    """An earlier learner may yet say there that it is paused; values and checkpoints never change. Nor does
    a file count that is being written at this moment, under a name of its own."""
    changing = ("experiment.log", "artifacts.h5")
    return {name: data for name, data in files.items() if name not in changing and not name.endswith(".tmp")}


def names_in(directory):
    return sorted(path.name for path in Path(directory).iterdir())


def users_files_in(run):
    """Beside the run's own, on every level."""
    mine = ["notes.txt", "train/cat.png", "train/epoch-1/thoughts.md", "checkpoint/exported.onnx"]
    for name in mine:
        (run / name).write_text("mine")
    return mine


def half_way(run, files=True):
    """A learner that was paused, and to which a variable still refers."""
    learner = built(builder_in(run, epochs=3, files=files))
    learner.step(6)
    return learner
