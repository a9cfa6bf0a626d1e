import errno
import os
import shutil

import pytest

from notebook_learner.store.appender import LineAppender


def test_lines_reach_the_file_without_a_buffer_between(tmp_path):
    file = LineAppender(tmp_path / "a" / "b.log")
    file.add("one\n", 1)
    assert file.waiting and not file.path.exists()
    file.write_out()
    assert not file.waiting and file.path.read_text() == "one\n"
    file.close()
    file.add("two\n", 1)
    file.write_out()
    assert file.path.read_text() == "one\ntwo\n"
    file.close()


def test_a_fresh_file_replaces_what_was_there_and_another_appends(tmp_path):
    path = tmp_path / "b.log"
    path.write_text("old\n")
    for fresh, content in ((False, "old\nnew\n"), (True, "new\n")):
        file = LineAppender(path, fresh=fresh)
        file.add("new\n", 1)
        file.write_out()
        file.close()
        assert path.read_text() == content


def test_a_short_write_loses_and_repeats_nothing(tmp_path, monkeypatch):
    real, sizes = os.write, []

    def three_bytes(descriptor, data):
        sizes.append(len(data))
        return real(descriptor, bytes(data)[:3])

    monkeypatch.setattr(os, "write", three_bytes)
    file = LineAppender(tmp_path / "b.log")
    file.add("0123456789\n", 1)
    file.write_out()
    assert sizes == [11, 8, 5, 2]
    assert file.path.read_text() == "0123456789\n"
    file.close()


def test_a_file_system_that_takes_nothing_is_an_error_not_a_hang(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "write", lambda descriptor, data: 0)
    file = LineAppender(tmp_path / "b.log")
    file.add("x\n", 1)
    with pytest.raises(OSError, match="took no byte"):
        file.write_out()
    assert file.waiting
    file.close()


def test_a_file_is_cut_after_its_kth_line_also_far_into_it(tmp_path):
    path = tmp_path / "b.log"
    lines = [f"{n},{'7' * (n % 40)}\n" for n in range(120_000)]
    assert sum(map(len, lines)) > 3 << 20
    for keep in (119_999, 100_000, 3, 1):
        path.write_text("".join(lines))
        file = LineAppender(path)
        file.keep(keep)
        assert file.lines == keep
        assert path.read_text() == "".join(lines[:keep])


def test_a_file_with_fewer_lines_than_are_kept_starts_anew(tmp_path):
    file = LineAppender(tmp_path / "b.log")
    for content in ("one\ntwo\nthr", "", None):
        if content is not None:
            file.path.write_text(content)
        file.keep(3)
        assert file.lines == 0 and not file.path.exists()


def test_a_removed_directory_is_told_once_and_line_k_stays_step_k(tmp_path):
    file = LineAppender(tmp_path / "run" / "b.log", blank="NaN,0\n")
    file.add("1,1\n2,1\n", 2)
    file.write_out()
    shutil.rmtree(tmp_path / "run")
    file.add("3,1\n", 1)
    with pytest.raises(FileNotFoundError, match="removed while the run wrote to it") as error:
        file.write_out()
    assert error.value.errno == errno.ENOENT and error.value.filename == str(file.path)
    file.write_out()
    assert file.path.read_text() == "NaN,0\nNaN,0\n3,1\n"
    file.close()


def test_an_appender_that_is_forgotten_gives_its_descriptor_back(tmp_path):
    file = LineAppender(tmp_path / "b.log")
    file.add("x\n", 1)
    file.write_out()
    descriptor = file._file.number
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)
