"""The checkpoints of a run: a folder of immutable files in which a checkpoint exists or does not.

    model-3.h5  optim-3.h5  scheduler-3.h5      what they are, in a recorder's format
    state-3.h5                                  everything else, and size and digest of its siblings

`state-3` *is* the commit. A save writes all files under temporary names, waits until their bytes are on
the disk, then gives them their names, `state-3` last. From the moment when the temporary `.state-3...tmp`
is whole, the checkpoint can be had: should the process die among the renames, readers find the rest under
the temporary names, and the next owner finishes the renames. Deleting goes the other way round.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, DamagedError, NoDescriptorsError, StateError, remedy
from ..store import durable, files
from ..store.run_folder import RunPath, below
from . import passes
from .commit import FORMAT, HEAD, REST, SCHEMA, checked, damaged
from .formats import is_known, recorder_for
from .info import LABEL, PARTS, CheckpointInfo, info_of
from .recorder import Lossy, Recorder
from .strategy import KeepBest, best_of

_COMMIT = re.compile(rf"state-({LABEL.pattern})\.([A-Za-z0-9.]+)")
_PART = re.compile(rf"(?:{'|'.join(PARTS)})(-[0-9].*)")
_TEMPORARY = re.compile(r"\.(.+)\.([0-9a-f]{8})\.tmp")
_MAY_BE_COMMIT = re.compile(r"\.?state-")
_TICK = 50_000_000
"""Nanoseconds: the times of files are no more exact than the system's clock ticks, 1 to 10 ms."""
_MOST_LOOKS = 5
"""How often a folder is looked through in which names change meanwhile."""


@dataclass(frozen=True, slots=True)
class _Commit:
    """A commit file: what it says, and where."""

    info: CheckpointInfo
    siblings: Mapping[str, tuple[str, int, str]]
    """Name, size and digest of each part."""
    state: str
    """Its name."""
    recorder: Recorder
    best: Any = None
    """What "best" means to its run."""


_Names = Mapping[str, os.stat_result]
"""The names in the folder, and what each is."""


_Signature = tuple[tuple[int, ...] | None, ...]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A commit that was looked at, or saved."""

    commit: _Commit
    signature: _Signature
    """Size, time and inode of the commit file and of its siblings."""
    settled: bool
    """Whether a change would give them another time: not within the tick in which they were written."""


class CheckpointFolder:
    """Lists, reads, writes, checks and deletes the checkpoints in a folder.

    >>> import tempfile
    >>> folder = CheckpointFolder(Path(tempfile.mkdtemp()) / "checkpoint")
    >>> folder.find(3)
    Traceback (most recent call last):
        ...
    notebook_learner.errors.StateError: there is no checkpoint 3; there is none yet
    """

    def __init__(self, path: Path, recorder: Recorder | None = None) -> None:
        self.path = below(path)
        self.recorder = recorder
        """The format to write; what is read tells its own."""
        self._failed: list[str] = []
        self._undeleted: set[RunPath] = set()
        """Parts of checkpoints whose deletion has failed half way."""
        self._made = False
        self._unsettled: list[str] = []
        """Commit files of this process that were looked at within the tick in which they were written."""
        self._seen: dict[str, _Seen] = {}
        """What commit files said when they were looked at, for as long as neither they nor the files beside
        them are others."""

    # Look --------------------------------------------------------------------------------------------

    def list(self) -> Sequence[CheckpointInfo]:
        """All of them in the order they were saved, also damaged ones, which say what is wrong."""
        found = [commit.info for commit in self._commits()]
        # One that cannot be read comes last: as far as anybody knows it is the newest.
        return sorted(found, key=lambda info: (info.sequence or 1 << 62, info.iteration))

    def find(self, which: int | str, best: KeepBest | None = None) -> CheckpointInfo:
        """A checkpoint by epoch, by label ("3-117"), or the "latest" or "best" one that is complete.

        Raises:
            StateError: there is none; the message lists what there is.
        """
        if which not in ("latest", "best"):
            for commit in self._commits(str(which)):
                return commit.info
        known = self.list()
        whole = [info for info in known if not info.damage]
        found = None
        if which == "latest":
            found = whole[-1] if whole else None
        elif which == "best":
            found = self.best(known, best)
        if found is None:
            why = "".join(f"\n  - {info.damage}" for info in known if info.damage)
            raise StateError(f"there is no checkpoint {which}; {_listed(known)}{why}")
        return found

    def best(self, known: Sequence[CheckpointInfo], rule: KeepBest | None = None) -> CheckpointInfo | None:
        """The best complete one of the run that saved last; None where no epoch of it has a value."""
        whole = [info for info in known if not info.damage]
        mine = [info for info in whole if info.ends_epoch and info.run == whole[-1].run]
        if not mine:
            return None
        rule = rule or self._rule(whole)
        return best_of(mine, rule) or best_of(mine, replace(rule, split="train"))

    def verify(self, info: CheckpointInfo) -> Sequence[str]:
        """Read every byte of a checkpoint; what is wrong, in a line each."""
        if info.damage:
            return [info.damage]
        problems = []
        for part in (*info.files,):
            try:
                value = self.read(info, part)
                if part == "state":
                    deque(self.earlier(value), maxlen=0)
            except (DamagedError, OSError) as error:
                problems.append(str(error))
        return problems

    def read(self, info: CheckpointInfo, part: str) -> Any:
        """What a part ("model", "optim", "scheduler", "state") holds, every byte of it checked."""
        commit = self._commit_of(info)
        if part == "state":
            with _opened(self.path / commit.state) as file:
                return checked(commit.recorder.decode(file), file.path)
        if part not in commit.siblings:
            raise StateError(f"checkpoint {info.label} has no {part}; it has {', '.join(info.files)}")
        name, size, digest = commit.siblings[part]
        path = self.path / name
        with _opened(path) as file:
            if file.size != size:
                raise damaged(path, f"it has {file.size} bytes, its commit file says {size}")
            decoded = commit.recorder.decode(file)
        if decoded.digest != digest:
            raise damaged(path, "it is not the file that its commit file speaks of")
        return decoded.value

    def earlier(self, commit: Mapping[str, Any]) -> Iterator[tuple[passes.Line, Mapping[str, Any]]]:
        """What `passes.jsonl` tells of the passes before a checkpoint, given what its "state" holds: the last
        line first, every byte of it checked. Nothing where all of them are in the commit file itself."""
        return passes.walk_back(self.path / passes.NAME, passes.line_of(commit.get("earlier")))

    def lost(self, info: CheckpointInfo) -> str:
        """What a checkpoint that is not exact has lost of its model, as far as its format tells."""
        commit = self._commit_of(info)
        if not isinstance(commit.recorder, Lossy):
            return ""
        with _opened(self.path / commit.siblings["model"][0]) as file:
            return commit.recorder.lost(file)

    def recorder_of(self, info: CheckpointInfo) -> Recorder:
        """The format of a checkpoint's files."""
        return self._commit_of(info).recorder

    def leftovers(self) -> Sequence[RunPath]:
        """Files that belong to no checkpoint: of a save that was cut off, or of a deletion."""
        commits = list(self._commits())
        used = {name for commit in commits for name in (commit.state, *_names(commit))}
        # The parts beside a commit file that cannot be read may be all that is left of somebody's work.
        kept = {commit.state.removeprefix("state") for commit in commits}
        found = []
        for name in files.names_in(self.path):
            part = _PART.fullmatch(name)
            if name not in used and (_TEMPORARY.fullmatch(name) or (part and part[1] not in kept)):
                found.append(self.path / name)
        return found

    # Write -------------------------------------------------------------------------------------------

    def commit(self, label: str, parts: Mapping[str, Any], about: Mapping[str, Any]) -> CheckpointInfo:
        """Save a checkpoint; when this returns it is on the disk.

        Raises:
            CheckpointError: it could not be written, or it holds what a file cannot. Earlier checkpoints
                are as they were.
        """
        recorder = self.recorder
        assert recorder is not None, "a folder that was opened to read"
        token = os.urandom(4).hex()
        try:
            self._finish_failed()
            self._make_folder()
            self._finish_deleting()
            return self._commit(recorder, token, label, parts, about)
        except BaseException as error:
            self._failed.append(token)
            with suppress(OSError):
                self._finish_failed()
            if isinstance(error, OSError):
                raise CheckpointError(not_written(label, self.path, error)) from error
            raise

    def tell_passes(
        self, told: Iterable[Mapping[str, Any]], after: passes.Line | None
    ) -> Sequence[passes.Line]:
        """Add lines to `passes.jsonl`, after one that it has; once this returns they are on the disk."""
        self._make_folder()
        return passes.append(self.path / passes.NAME, told, after)

    def has_passes(self, line: passes.Line) -> bool:
        """Whether `passes.jsonl` is as long as it was with this line at its end. Nothing is read."""
        return passes.holds(self.path / passes.NAME, line)

    def delete(self, info: CheckpointInfo) -> None:
        """Delete a checkpoint: the commit first, so that none is ever seen without its parts. One that was
        saved or looked at here, and is the same still, is not read for it."""
        commit = self._as_saved(info) or self._commit_of(info)
        parts = [self.path / name for name in _names(commit)]
        self._undeleted.update(parts)
        files.unlink(self.path / commit.state)
        self._seen.pop(commit.state, None)
        files.sync_directory(self.path)
        for path in parts:
            files.unlink(path)
            self._undeleted.discard(path)

    def repair(self) -> Sequence[str]:
        """Finish what a dead process left half done: complete saves get their names, pieces of others go.
        What it did, in a line each. Call it only where no process saves here."""
        done = []
        for commit in list(self._commits()):
            if _token(commit.state) and not commit.info.damage:
                self._finish(commit)
                done.append(f"checkpoint {commit.info.label} was whole but not named yet; it is now")
        for path in self.leftovers():
            files.unlink(path)
            done.append(f"{path.name} belonged to no checkpoint and was deleted")
        return done

    def _commit(
        self, recorder: Recorder, token: str, label: str, parts: Mapping[str, Any], about: Mapping[str, Any]
    ) -> CheckpointInfo:
        entries: dict[str, dict[str, Any]] = {}
        paths = []
        for part, value in parts.items():
            path = self.path / f"{part}-{label}.{recorder.suffix}"
            encoded = recorder.encode(value, part)
            durable.write_new(durable.temporary_name(path, token), encoded.pieces, encoded.size)
            entries[part] = {"name": path.name, "size": encoded.size, "digest": encoded.digest}
            paths.append(path)
        state = self.path / f"state-{label}.{recorder.suffix}"
        commit = {"format": FORMAT, "schema": SCHEMA, "label": label, "saved_at": time.time()}
        commit |= {"exact": recorder.exact, "files": entries}
        # What a list of checkpoints shows comes first, so that it need not read the rest.
        first = [key for key in HEAD if key in about]
        commit |= {key: about[key] for key in [*first, *(key for key in about if key not in HEAD)]}
        encoded = recorder.encode(commit, "state")
        durable.write_new(durable.temporary_name(state, token), encoded.pieces, encoded.size)
        self._give_names(durable.temporary_name(state, token), paths, token)
        saved = self._understood(commit, encoded.size, state.name, recorder, set())
        with files.opened_folder(self.path) as folder:
            self._settle(folder)
            self._seen[state.name] = _seen(saved, folder.stats([state.name, *_names(saved)]))
        self._unsettled.append(state.name)
        return saved.info

    def _settle(self, folder: files.Folder) -> None:
        """Look once more at what was saved here before, once a change of it would give it another time: else
        the next list would read all of them."""
        waiting, self._unsettled = self._unsettled, []
        for name in waiting:
            seen = self._seen.get(name)
            if seen is None or seen.settled:
                continue
            if not _is_past(seen.signature):
                self._unsettled.append(name)
            elif name in (there := folder.stats([name, *_names(seen.commit)])):
                self._look(folder, name, seen.commit.info.label, name.partition(".")[2], there)

    def _make_way(self, state: RunPath) -> None:
        """A checkpoint of this label that is there already: from here on the new one, whole under its
        temporary names, stands for it."""
        label = _commit_label(state.name)
        known = [name for name in files.names_in(self.path) if _commit_label(name) == label]
        if known:
            files.sync_directory(self.path)
            for name in known:
                files.unlink(self.path / name)
            files.sync_directory(self.path)

    def _give_names(self, state: RunPath, paths: Iterable[RunPath], token: str) -> None:
        """All bytes are on the disk: the names follow, the commit's last."""
        final = self.path / _final_name(state.name)
        self._make_way(final)
        for path in paths:
            files.rename(durable.temporary_name(path, token), path)
        files.sync_directory(self.path)
        files.rename(state, final)
        files.sync_directory(self.path)

    def _finish(self, commit: _Commit) -> None:
        """Name what a save, whole but cut off among its renames, has not named yet."""
        token = _token(commit.state)
        unnamed = [self.path / _final_name(name) for name in _names(commit) if _token(name) == token]
        self._give_names(self.path / commit.state, unnamed, token)

    def _finish_failed(self) -> None:
        """After a save of this process has failed: finish it where it was whole, else take it back."""
        if not self._failed:
            return
        for commit in list(self._commits()):
            if _token(commit.state) in self._failed and not commit.info.damage:
                self._finish(commit)
        for name in files.names_in(self.path):
            if _token(name) in self._failed:
                files.unlink(self.path / name)
        self._failed.clear()

    def _finish_deleting(self) -> None:
        """What an error has kept from being deleted goes now, unless a checkpoint still needs it."""
        if not self._undeleted:
            return
        with suppress(OSError):  # it is tried again
            files.sync_directory(self.path)
            for path in self._undeleted.intersection(self.leftovers()):
                files.unlink(path)
            self._undeleted.clear()

    def _make_folder(self) -> None:
        """The folder, and the names that lead to it, on the disk."""
        missing = [path for path in (self.path, *self.path.parents) if not path.exists()]
        if self._made and missing:
            self._made = False
            raise FileNotFoundError(
                errno.ENOENT,
                "the folder was moved or removed while the run wrote to it; put it back, or go on without "
                "the checkpoints that were in it",
            )
        files.make_directory(self.path)
        if not self._made:
            _sync_names_above(self.path)
        self._made = True

    # Commits -----------------------------------------------------------------------------------------

    def _commits(self, label: str | None = None) -> Iterator[_Commit]:
        """Every commit file (or only those of a label), named or still under its temporary name; of two
        with one label the named one, unless only the other is complete."""
        if self.path.is_symlink():
            raise DamagedError(
                f"{self.path} is a link, which may lead out of its run's directory; checkpoints are read and "
                "written only inside it. Move what it leads to into its place"
            )
        with files.opened_folder(self.path) as folder:
            names = folder.names()
            for _ in range(_MOST_LOOKS):
                there = folder.stats(name for name in names if label is None or f"-{label}." in name)
                found, before = self._among(folder, there, label), set(names)
                # A save that got its names meanwhile was there under neither.
                if set(names := folder.names()) == before:
                    break
        if label is None:
            self._seen = {name: seen for name, seen in self._seen.items() if name in there}
        yield from found.values()

    def _among(self, folder: files.Folder, there: _Names, label: str | None = None) -> dict[str, _Commit]:
        found: dict[str, _Commit] = {}
        for name in sorted(filter(_MAY_BE_COMMIT.match, there), key=lambda name: name.startswith(".")):
            match = _COMMIT.fullmatch(_final_name(name))
            if match is None or not is_known(match[2], self.recorder) or label not in (None, match[1]):
                continue
            commit = self._look(folder, name, match[1], match[2], there)
            if name.startswith(".") and (commit.info.damage or _is_whole(found.get(match[1]))):
                continue  # the pieces of a save that was cut off, or about to be
            found[match[1]] = commit
        return found

    def _look(self, folder: files.Folder, name: str, label: str, suffix: str, there: _Names) -> _Commit:
        """What a commit file says: what it said last time, where nothing is another since."""
        seen = self._seen.get(name)
        if seen is not None and seen.settled and seen.signature == _signature(seen.commit, there):
            return seen.commit
        recorder, path = recorder_for(suffix, self.recorder), self.path / name
        try:
            with durable.opened(path, folder) as file:
                size, said = file.size, self._said(recorder, file)
            if said["label"] != label:
                raise damaged(path, f"it says that it is the commit of checkpoint {said['label']}")
            commit = self._understood(said, size, name, recorder, there)
        except NoDescriptorsError:  # that says nothing of the file
            raise
        except (DamagedError, OSError) as error:
            return _Commit(_unreadable(label, _why(error, path), name), {}, name, recorder)
        damage = next(
            (wrong for each in commit.siblings.values() if (wrong := self._wrong(*each, there))), ""
        )
        if damage:
            return replace(commit, info=replace(commit.info, damage=damage))
        self._seen[name] = _seen(commit, there)
        return commit

    def _said(self, recorder: Recorder, file: durable.Reader) -> dict[str, Any]:
        if _token(file.path.name):
            # Without its name it may be half written, the outline before the tensors: all of it is read.
            return checked(recorder.decode(file), file.path)
        read_head = getattr(recorder, "head", None)  # asking for the protocol takes longer than reading it
        head = None if read_head is None else read_head(file, REST)
        if head is None or not {"files", "sequence"} <= head.value.keys():  # of the version before, say
            return checked(recorder.outline(file), file.path)
        return checked(head, file.path, only_head=True)

    def _understood(
        self, said: Mapping[str, Any], size: int, name: str, recorder: Recorder, there: Container[str]
    ) -> _Commit:
        """A commit file's contents with the names of its parts, which are computed, not taken from a
        stranger's file."""
        token, (_, _, suffix) = _token(name), _final_name(name).partition(".")
        siblings = {}
        for part, entry in said["files"].items():
            if part not in PARTS:
                raise damaged(self.path / name, f"it speaks of a part {part!r}, which no checkpoint has")
            sibling = f"{part}-{said['label']}.{suffix}"
            if token and (unnamed := f".{sibling}.{token}.tmp") in there:
                sibling = unnamed
            siblings[part] = (sibling, entry["size"], entry["digest"])
        used = {part: sibling for part, (sibling, _, _) in siblings.items()} | {"state": name}
        size += sum(size for _, size, _ in siblings.values())
        return _Commit(info_of(said, size, used), siblings, name, recorder, said.get("best"))

    def _wrong(self, name: str, size: int, digest: str, there: _Names) -> str:
        if name not in there:
            return str(damaged(self.path / name, "it is missing"))
        found = there[name].st_size
        return (
            "" if found == size else str(damaged(self.path / name, f"it has {found} bytes instead of {size}"))
        )

    def _commit_of(self, info: CheckpointInfo) -> _Commit:
        with files.opened_folder(self.path) as folder:
            for commit in self._among(folder, folder.stats(info.files.values()), info.label).values():
                if not commit.info.damage:
                    return commit
        for commit in self._commits(info.label):  # it may have got its names meanwhile
            if commit.info.damage:
                raise DamagedError(commit.info.damage)
            return commit
        raise StateError(f"there is no checkpoint {info.label} any more; {_listed(self.list())}")

    def _as_saved(self, info: CheckpointInfo) -> _Commit | None:
        """A commit that is what it was when it was saved or looked at; nothing is read."""
        seen = self._seen.get(info.files.get("state", ""))
        if seen is None:
            return None
        with files.opened_folder(self.path) as folder:
            there = folder.stats([seen.commit.state, *_names(seen.commit)])
        return seen.commit if seen.signature == _signature(seen.commit, there) else None

    def _rule(self, whole: Sequence[CheckpointInfo]) -> KeepBest:
        """What "best" means to this run, as its newest commit says."""
        for info in reversed(whole):
            rule = self._commit_of(info).best
            if rule:
                return KeepBest(rule["metric"], rule["split"], rule["mode"])
        return KeepBest()


@contextmanager
def _opened(path: Path) -> Iterator[durable.Reader]:
    try:
        with durable.opened(path) as file:
            yield file
    except FileNotFoundError:
        raise damaged(path, "it is missing") from None
    except OSError as error:
        if error.filename is None:  # a failed read knows no name
            error.filename = str(path)
        raise


def _why(error: DamagedError | OSError, path: Path) -> str:
    if isinstance(error, FileNotFoundError):
        return str(damaged(path, "it is missing"))
    if isinstance(error, OSError) and error.filename is None:  # a failed read knows no name
        error.filename = str(path)
    return str(error)


def _unreadable(label: str, damage: str, name: str) -> CheckpointInfo:
    """What is known of a checkpoint by its name alone."""
    epoch, *rest = label.split("-")
    return CheckpointInfo(
        label,
        int(epoch),
        int(rest[-1]) if rest else 0,
        0,
        split="valid" if "valid" in rest else "train",
        kind="manual" if rest else "epoch",
        files={"state": name},
        damage=damage,
    )


def not_written(label: str, path: Path, error: OSError) -> str:
    """What to tell a person whose disk refuses a checkpoint."""
    return (
        f"checkpoint {label} could not be written to {path}: {error.strerror or error}. Training stands at a "
        f"step boundary with everything in memory, and earlier checkpoints are as they were. {remedy(error)} "
        "and call fit() again: it writes the checkpoint first, then goes on"
    )


def _listed(known: Sequence[CheckpointInfo]) -> str:
    if not known:
        return "there is none yet"
    names = ", ".join(f"{info.label} (damaged)" if info.damage else info.label for info in known)
    return f"there are: {names}"


def _is_whole(commit: _Commit | None) -> bool:
    return commit is not None and not commit.info.damage


def _names(commit: _Commit) -> list[str]:
    return [name for name, _, _ in commit.siblings.values()]


def _seen(commit: _Commit, there: _Names) -> _Seen:
    signature = _signature(commit, there)
    return _Seen(commit, signature, _is_past(signature))


def _is_past(signature: _Signature) -> bool:
    """Whether the tick is over in which the newest of the files was written."""
    return time.time_ns() - max(each[1] for each in signature if each is not None) > _TICK


def _signature(commit: _Commit, there: _Names) -> _Signature:
    return tuple(
        (found.st_size, found.st_mtime_ns, found.st_ino) if (found := there.get(name)) is not None else None
        for name in (commit.state, *_names(commit))
    )


def _token(name: str) -> str:
    """What tells the temporary files of one save from another's; empty for a file with its final name."""
    match = _TEMPORARY.fullmatch(name)
    return match[2] if match else ""


def _final_name(name: str) -> str:
    match = _TEMPORARY.fullmatch(name)
    return match[1] if match else name


def _commit_label(name: str) -> str | None:
    match = _COMMIT.fullmatch(name)
    return match[1] if match else None


def _sync_names_above(path: Path) -> None:
    """The names that lead to a folder, on the disk. Which of them are new nobody knows: the logs made the
    run's directory, and perhaps those above it, long before the first checkpoint."""
    for above in path.absolute().parents:
        with suppress(PermissionError):  # one that we may not look into we have not made
            files.sync_directory(above)
        if os.path.ismount(above):
            return
