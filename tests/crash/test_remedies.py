"""What a person is told to do about what the system refused: of each refusal its own."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from crash_support import Calls, Training

from notebook_learner.errors import CheckpointError, LoggerError, NotebookLearnerError, remedy

EACH = {
    errno.ENOSPC: "Free some space there",
    errno.EDQUOT: "Free some of your quota there",
    errno.ENOENT: "Put back what was moved or removed there",
    errno.ELOOP: "Put a plain file or directory in the place of the link",
    errno.EACCES: "Give yourself the right to write there",
    errno.EROFS: "Have that file system mounted for writing",
    errno.EMFILE: "raise its limit",
    errno.EIO: "Look whether the disk is sound",
    errno.ECONNRESET: "Remove the cause",
}


@pytest.mark.parametrize(
    ("call", "number"),
    [*(("rename", number) for number in EACH), ("append", errno.ENOSPC), ("append", errno.ELOOP)],
)
def test_a_refusal_names_its_own_remedy_and_what_is_kept(tmp_path: Path, call: str, number: int) -> None:
    refused = []

    def hand(count, name, real, given, named):
        if name == call and not refused and (call == "append" or "checkpoint" in str(given)):
            refused.append(name)
            raise OSError(number, os.strerror(number))
        return real(*given, **named)

    learner = Training(epochs=2).learner(tmp_path)
    with Calls(hand), pytest.raises((CheckpointError, LoggerError)) as told:
        learner.fit()
    assert refused == [call]
    assert f"{EACH[number]}" in str(told.value) and "and call fit() again" in str(told.value)
    assert os.strerror(number) in str(told.value)
    assert number == errno.ENOSPC or "space" not in str(told.value).replace("No space", "")
    learner.fit()
    assert learner.status == "finished"


def test_an_error_in_words_of_our_own_gives_no_second_advice() -> None:
    assert remedy(OSError(errno.ENOENT, "the folder was moved; put it back")) == "Remove the cause"
    assert remedy(ValueError("x")) == "Remove the cause"


def test_a_read_only_file_system_is_called_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mounted:
        f_flag = os.ST_RDONLY

    monkeypatch.setattr(os, "access", lambda *given, **named: False)
    monkeypatch.setattr(os, "statvfs", lambda path: Mounted)
    resumes = lambda builder: builder.resume()  # noqa: E731
    with pytest.raises(NotebookLearnerError, match=r"\(Read-only file system\).*copy it there first"):
        Training().learner(tmp_path, configure=resumes)
