import io
import os
import subprocess
import sys

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from notebook_learner.artifacts import index
from notebook_learner.artifacts.clock import Clock
from notebook_learner.artifacts.index import MAGIC, encode_index, read_header
from notebook_learner.artifacts.read_record import read_record
from notebook_learner.artifacts.run_info import RunInfo
from notebook_learner.artifacts.timeline import TimelineMark
from notebook_learner.checkpoint.info import CheckpointInfo
from notebook_learner.errors import DamagedError
from notebook_learner.event import (
    Column,
    MetricBlock,
    MetricInfo,
    RunOpened,
    SplitEnded,
    SplitRecord,
    SplitStarted,
)
from notebook_learner.logger.file import FileMetricLogger

NAMES = ("Loss", "Top-K Accuracy @ TopK(5)", "CPU Usage")
INFOS = tuple(
    MetricInfo(name, split, "%" if name == "CPU Usage" else "")
    for split in ("train", "valid")
    for name in NAMES
)
RUN = RunInfo.of(
    RunOpened(
        "runs/digits", "Net Größe", 1290, 3, INFOS, {"device": "cpu", "early stopping": "a/b", "x": "nul\0"}
    ),
    1000.0,
)
CHECKPOINTS = (
    CheckpointInfo(
        "3-117",
        3,
        117,
        597,
        kind="auto",
        saved_at=1234.5,
        size=99,
        metrics={"valid": {"Loss": 0.25}},
        files={"model": "model-3-117.h5", "optim": "optim-3-117.mpk.gz", "state": "../../etc/state.h5"},
    ),
)
TIMELINE = (
    TimelineMark("paused", 3, "train", 117, 1300.0, "gefüttert"),
    TimelineMark("rewound", 2, "valid", 1, 1301.0),
)


def block(epoch, split, first, count, trained, drop=(), gpu="idle"):
    values = np.arange(first, first + count) + 100.0 * epoch
    weights = np.full(count, 32.0)
    columns = {name: Column(values + i, weights) for i, name in enumerate(NAMES[:2]) if name not in drop}
    columns["CPU Usage"] = Column(values / 3)
    last = first + count - 1
    iteration = trained + (last if split == "train" else 0)
    return MetricBlock(epoch, split, first, count, iteration, columns, {"GPU": gpu}, float(count))


@pytest.fixture
def record():
    finals = dict.fromkeys(NAMES[:2], 0.5)
    return (
        SplitRecord(1, "train", (block(1, "train", 1, 4, 0), block(1, "train", 5, 2, 0, gpu="büsy")), finals),
        SplitRecord(1, "valid", (block(1, "valid", 1, 3, 6),), finals),
        SplitRecord(2, "train", (block(2, "train", 1, 5, 6, gpu="büsy"),), {"Loss": 0.125}),
        SplitRecord(2, "valid", (block(2, "valid", 1, 2, 11, drop=NAMES[1:2]),), None),
    )


@pytest.fixture
def clock(record):
    clock = Clock()
    for past in record:
        for each in past.blocks:
            clock.add(each, 1000.0 + each.iteration + each.last)
    return clock


@pytest.fixture(params=[index._ROWS, 3, 1], ids="{} rows at a time".format)
def path(tmp_path, record, clock, request, monkeypatch):
    monkeypatch.setattr(index, "_ROWS", request.param)
    (tmp_path / "artifacts.h5").write_bytes(encode_index(RUN, record, clock, TIMELINE, CHECKPOINTS, 7.0))
    return tmp_path / "artifacts.h5"


@pytest.fixture
def file(path):
    with h5py.File(path, "r") as file:
        yield file


# ---------------------------------------------------------------------------------- measurements


def test_the_series_are_the_records_values(file, record):
    for split in ("train", "valid"):
        blocks = [each for past in record if past.split == split for each in past.blocks]
        for name in NAMES:
            group = file["series"][split][name]
            missing = [np.full(each.count, np.nan) for each in blocks]
            columns = [each.columns.get(name) for each in blocks]
            wanted = [gap if c is None else c.values for c, gap in zip(columns, missing, strict=True)]
            np.testing.assert_array_equal(group["value"][:], np.concatenate(wanted))
            assert group["epoch"][:].tolist() == [each.epoch for each in blocks for _ in range(each.count)]
            steps = [step for each in blocks for step in range(each.first, each.last + 1)]
            assert group["step"][:].tolist() == steps
    train, valid = file["series/train/Loss"], file["series/valid/Loss"]
    assert train["iteration"][:].tolist() == list(range(1, 12))
    assert valid["iteration"][:].tolist() == [6, 6, 6, 11, 11]
    assert train["weight"][:].tolist() == [32.0] * 11
    assert file["series/valid"][NAMES[1]]["weight"][:].tolist() == [32.0] * 3 + [0.0] * 2
    assert "weight" not in file["series/train/CPU Usage"]


def test_times_come_from_the_clock(file, clock):
    wanted = [clock.times(epoch, "train", np.arange(1, 7 - (epoch > 1))) for epoch in (1, 2)]
    np.testing.assert_array_equal(file["series/train/Loss/time"][:], np.concatenate(wanted))


def test_positions_exist_once_for_a_split(file):
    loss, cpu = file["series/train/Loss"], file["series/train/CPU Usage"]
    for name in ("epoch", "step", "iteration", "time"):
        assert loss[name] == cpu[name]
    assert loss["value"] != cpu["value"]


def test_texts_have_a_row_a_change(file):
    gpu = file["series/train/GPU"]
    assert gpu["text"].asstr()[:].tolist() == ["idle", "büsy"]
    assert gpu["iteration"][:].tolist() == [1, 5]
    assert h5py.check_string_dtype(gpu["text"].dtype).length == len("büsy".encode())


def test_epochs_hold_the_final_values(file):
    assert file["epochs/train/Loss/value"][:].tolist() == [0.5, 0.125]
    np.testing.assert_array_equal(file["epochs/train"][NAMES[1]]["value"][:], [0.5, np.nan])
    assert file["epochs/train/Loss/epoch"][:].tolist() == [1, 2]
    assert file["epochs/valid/Loss/epoch"][:].tolist() == [1]


def test_what_was_read_from_the_logs_makes_the_same_series(tmp_path, record, clock):
    whole = tuple(past for past in record if past.epoch == 1)
    logger = FileMetricLogger(tmp_path)
    for past in whole:
        logger.handle(SplitStarted(past.epoch, past.split, None, 3))
        for each in past.blocks:
            logger.handle(each)
        logger.handle(SplitEnded(past.epoch, past.split, past.steps, past.finals))
    logger.close()
    live = contents(encode_index(RUN, whole, clock, (), ()))
    again = contents(encode_index(RUN, read_record(tmp_path, INFOS), Clock(), (), ()))
    assert live.keys() == again.keys()
    for name in live:
        if not name.endswith("/time"):
            np.testing.assert_array_equal(live[name], again[name], err_msg=name)


def contents(data):
    found = {}
    with h5py.File(io.BytesIO(data), "r") as file:
        for part in ("series", "epochs"):
            for split in file[part]:
                for metric, group in file[part][split].items():
                    found.update({f"{part}/{split}/{metric}/{name}": group[name][:] for name in group})
    return found


# ---------------------------------------------------------------------------------- for viewers


def test_every_plot_says_what_to_draw(file):
    plots = []
    file.visititems(lambda name, each: plots.append(each) if each.attrs.get("NX_class") == "NXdata" else None)
    assert len(plots) == 2 * len(NAMES) + 4
    for plot in plots:
        signal, axis = plot[plot.attrs["signal"]], plot[plot.attrs["axes"]]
        assert signal.shape == axis.shape and signal.ndim == 1
    assert file["series/train/CPU Usage/value"].attrs["units"] == "%"
    assert file["series/train/Loss/value"].attrs["long_name"] == "Loss"


def test_the_root_points_at_the_loss(file, record):
    assert file.attrs["NX_class"] == "NXroot"
    assert file[file.attrs["default"]] == file["epochs/valid/Loss"]
    for kept, wanted in ((1, "epochs/train/Loss"), (0, "run")):
        with h5py.File(io.BytesIO(encode_index(RUN, record[:kept], Clock(), (), ())), "r") as other:
            assert other[other.attrs["default"]] == other[wanted]


def test_the_run_is_readable_as_attributes(file):
    run = file["run"].attrs
    assert (run["model"], run["parameters"], run["started"]) == ("Net Größe", 1290, 1000.0)
    assert "ended" not in run and "seed" not in run
    settings = file["run/settings"].attrs
    assert settings["early stopping"] == "a/b" and settings["x"] == "nul\\x00"
    assert file["run/versions"].attrs["numpy"] == np.__version__


def test_checkpoints_are_relative_links_to_their_own_files(path):
    (path.parent / "checkpoint").mkdir()
    with h5py.File(path.parent / "checkpoint" / "model-3-117.h5", "w") as model:
        model["weight"] = [1.0, 2.0]
    moved = path.parent.with_name(f"{path.parent.name}-moved")
    path.parent.rename(moved)
    with h5py.File(moved / "artifacts.h5", "r") as file:
        group = file["checkpoints/3-117"]
        link = group.get("model", getlink=True)
        assert (link.filename, link.path) == ("checkpoint/model-3-117.h5", "/")
        assert group["model/weight"][:].tolist() == [1.0, 2.0]
        assert list(group) == ["model"], "only plain .h5 names in the checkpoint folder are linked"
        assert group.attrs["optim"] == "optim-3-117.mpk.gz"
        assert group.attrs["state"] == "../../etc/state.h5"
        assert (group.attrs["iteration"], group.attrs["saved_at"]) == (597, 1234.5)
        assert group.attrs["metrics"] == '{"valid": {"Loss": 0.25}}'


def test_the_timeline_is_a_table(file):
    timeline = file["timeline"]
    assert timeline["kind"].asstr()[:].tolist() == ["paused", "rewound"]
    assert timeline["split"].asstr()[:].tolist() == ["train", "valid"]
    assert timeline["text"].asstr()[:].tolist() == ["gefüttert", ""]
    assert [timeline[name][:].tolist() for name in ("epoch", "step", "time")] == [
        [3, 2],
        [117, 1],
        [1300, 1301],
    ]


def test_the_hdf_groups_own_tool_reads_it(path, hdf5_tool):
    said = hdf5_tool("h5dump", "-H", path)
    for part in ('GROUP "Loss"', 'EXTERNAL_LINK "model"', 'DATASET "iteration"', "STRSIZE 5", "CSET_UTF8"):
        assert part in said
    assert "0.5, 0.125" in hdf5_tool("h5dump", "-d", "/epochs/train/Loss/value", "-y", "-w", "0", path)


def test_odd_names_stay_inside_their_group():
    values = Column(np.array([1.0]), np.array([1.0]))
    names = ["a/b", "..", ".", "", "epoch", "x\0y", "\ud800"]
    one = MetricBlock(1, "train", 1, 1, 1, dict.fromkeys(names, values), {}, 1.0)
    data = encode_index(RUN, (SplitRecord(1, "train", (one,), None),), Clock(), (), ())
    with h5py.File(io.BytesIO(data), "r") as file:
        assert set(file["series/train"]) == {"a%2Fb", "%2E.", "%2E", "%", "epoch", "x%00y", "\\ud800"}


def test_long_texts_do_not_make_a_large_file():
    runs = tuple((1, f"{row}: " + "ü" * (100_000 if row == 7 else 1)) for row in range(2000))
    one = MetricBlock(1, "train", 1, 2000, 2000, {}, {"GPU": runs[-1][1]}, 1.0, {"GPU": runs})
    data = encode_index(RUN, (SplitRecord(1, "train", (one,), None),), Clock(), (), ())
    assert len(data) < 20 << 20
    with h5py.File(io.BytesIO(data), "r") as file:
        text = file["series/train/GPU/text"].asstr()[:]
        assert text[0] == "0: ü" and text[7].startswith("7: üü") and text[1999] == "1999: ü"


def test_an_empty_run_is_a_file_too():
    with h5py.File(io.BytesIO(encode_index(RUN, (), Clock(), (), ())), "r") as file:
        assert len(file["timeline/kind"]) == len(file["checkpoints"]) == len(file["series"]) == 0


# ---------------------------------------------------------------------------------------- header


@pytest.mark.rounds(1)
def test_the_header_is_read_without_hdf5(path, clock):
    header = read_header(path)
    assert RunInfo.from_json(header["run"]) == RUN
    assert Clock.from_json(header["clock"]).to_json() == clock.to_json()
    assert tuple(map(TimelineMark.from_json, header["timeline"])) == TIMELINE
    assert (header["schema"], header["written_at"]) == (1, 7.0)
    code = (
        "import sys; from notebook_learner.artifacts.index import read_header; read_header(sys.argv[1]);"
        "sys.exit('h5py' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, path], check=False).returncode == 0


def test_a_large_header_gets_a_larger_user_block(tmp_path, record, clock):
    marks = [TimelineMark("paused", 1, "train", n, 1.0, "again") for n in range(5000)]
    path = tmp_path / "artifacts.h5"
    path.write_bytes(encode_index(RUN, record, clock, marks, ()))
    assert len(read_header(path)["timeline"]) == 5000
    with h5py.File(path, "r") as file:
        assert file.userblock_size > 100_000 and len(file["timeline/step"]) == 5000


@given(st.data())
def test_a_damaged_header_is_refused(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "damaged.h5"
    whole = encode_index(RUN, (), Clock(), TIMELINE, (), 7.0)
    length = int.from_bytes(whole[12:20], "little") + 52
    if data.draw(st.booleans()):
        at = data.draw(st.integers(0, length - 1))
        flip = data.draw(st.integers(1, 255))
        path.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])
    else:
        path.write_bytes(whole[: data.draw(st.integers(0, length - 1))])
    with pytest.raises(DamagedError, match=r"damaged\.h5"):
        read_header(path)


@pytest.mark.parametrize("text", [b"[]", b"nonsense", b"[" * 100_000, b"\xff", b"1" * 10_000])
def test_a_header_that_is_no_object_is_refused(tmp_path, text):
    from notebook_learner.store.durable import digest_of

    size = len(text).to_bytes(8, "little")
    path = tmp_path / "artifacts.h5"
    path.write_bytes(MAGIC + (1).to_bytes(4, "little") + size + digest_of(text).encode() + text)
    with pytest.raises(DamagedError, match="no JSON object"):
        read_header(path)


def test_a_later_schema_asks_for_an_update(path):
    data = bytearray(path.read_bytes())
    data[8] = 99
    path.write_bytes(data)
    with pytest.raises(DamagedError, match=r"schema 99.*update notebook_learner"):
        read_header(path)


def test_a_missing_file_and_a_link_are_errors_of_the_system(path):
    with pytest.raises(FileNotFoundError):
        read_header(path.with_name("none.h5"))
    os.symlink(path, path.with_name("link.h5"))
    with pytest.raises(OSError, match=r"link\.h5"):
        read_header(path.with_name("link.h5"))
