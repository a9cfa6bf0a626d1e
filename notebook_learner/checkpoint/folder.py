"""The checkpoints of a run: a folder of immutable files, in which a checkpoint exists whole or not at all.

    model-3.h5  optim-3.h5  scheduler-3.h5      what they are, in a recorder's format
    state-3.h5                                  everything else, and size and digest of its siblings

`state-3` *is* the commit. A save writes all files under temporary names, waits until their bytes are on
the disk, and then gives them their final names, `state-3` last. The checkpoint exists as soon as the
temporary `.state-3...tmp` is whole. If the process dies between the renames, readers find the other files
under their temporary names, and the next owner finishes the renames. Deleting goes in the opposite order.
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
from .formats import is_known, recorder_for
from .info import FORMAT, HEAD, LABEL, PARTS, REST, SCHEMA, CheckpointInfo, checked, damaged, info_of
from .recorder import Lossy, Recorder
from .strategy import KeepBest, best_of

_COMMIT = re.compile(rf"state-({LABEL.pattern})\.([A-Za-z0-9.]+)")
_PART = re.compile(rf"(?:{'|'.join(PARTS)})(-[0-9].*)")
_TEMPORARY = re.compile(r"\.(.+)\.([0-9a-f]{8})\.tmp")
_MAY_BE_COMMIT = re.compile(r"\.?state-")
_TICK = 50_000_000
"""Nanoseconds: the times of files are only as exact as the ticks of the system's clock, 1 to 10 ms."""
_MOST_LOOKS = 5
"""How often a folder is listed again if names in it change meanwhile."""


@dataclass(frozen=True, slots=True)
class _Commit:
    """A commit file: its contents and its place."""

    info: CheckpointInfo
    siblings: Mapping[str, tuple[str, int, str]]
    """Name, size and digest of each part."""
    state: str
    """Its name."""
    recorder: Recorder
    best: Any = None
    """The rule for "best" in its run."""


_Names = Mapping[str, os.stat_result]
"""The names in the folder, and the kind of each."""


_Signature = tuple[tuple[int, ...] | None, ...]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A commit that was read or saved."""

    commit: _Commit
    signature: _Signature
    """Size, time and inode of the commit file and of its siblings."""
    settled: bool
    """Whether a change would now give them another time: not in the tick in which they were written."""


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
        """The format to write; a file that is read says its own."""
        self._failed: list[str] = []
        self._undeleted: set[RunPath] = set()
        """Parts of checkpoints whose deletion failed half way."""
        self._made = False
        self._unsettled: list[str] = []
        """Commit files of this process that were read in the tick in which they were written."""
        self._seen: dict[str, _Seen] = {}
        """Contents of commit files that were read, kept for as long as these files and their siblings are the
        same."""

    # Look --------------------------------------------------------------------------------------------

    def list(self) -> Sequence[CheckpointInfo]:
        """All checkpoints in the order in which they were saved; a damaged one says what is wrong."""
        found = [commit.info for commit in self._commits()]
        # One that cannot be read comes last: it may be the newest.
        return sorted(found, key=lambda info: (info.sequence or 1 << 62, info.iteration))

    def find(self, which: int | str, best: KeepBest | None = None) -> CheckpointInfo:
        """Find a checkpoint by epoch or by label ("3-117"), or the "latest" or "best" complete one.

        Raises:
            StateError: there is no such checkpoint; the message lists the existing ones.
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
        """The best complete checkpoint of the run that saved last; None if no epoch of it has a value."""
        whole = [info for info in known if not info.damage]
        mine = [info for info in whole if info.ends_epoch and info.run == whole[-1].run]
        if not mine:
            return None
        rule = rule or self._rule(whole)
        return best_of(mine, rule) or best_of(mine, replace(rule, split="train"))

    def verify(self, info: CheckpointInfo) -> Sequence[str]:
        """Read every byte of a checkpoint; return the problems, in one line each."""
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
        """Read a part ("model", "optim", "scheduler", "state"), and check every byte of it."""
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
        """Read the passes before a checkpoint from `passes.jsonl`, given its "state": the last line first,
        every byte checked. Empty if all passes are in the commit file."""
        return passes.walk_back(self.path / passes.NAME, passes.line_of(commit.get("earlier")))

    def lost(self, info: CheckpointInfo) -> str:
        """What an inexact checkpoint has lost of its model, if its format says so."""
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
        return self._leftovers(list(self._commits()))

    def _leftovers(self, commits: Sequence[_Commit]) -> Sequence[RunPath]:
        used = {name for commit in commits for name in (commit.state, *_names(commit))}
        # The parts next to a commit file that cannot be read may be all that is left of the user's work.
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
            CheckpointError: it could not be written, or it holds a value that a file cannot hold. Earlier
                checkpoints are unchanged.
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
        """Add lines to `passes.jsonl` after an existing one; when this returns they are on the disk."""
        self._make_folder()
        return passes.append(self.path / passes.NAME, told, after)

    def has_passes(self, line: passes.Line) -> bool:
        """Whether `passes.jsonl` is long enough to hold this line. Nothing is read."""
        return passes.holds(self.path / passes.NAME, line)

    def delete(self, info: CheckpointInfo) -> None:
        """Delete a checkpoint, the commit first, so that no reader sees a checkpoint without its parts. A
        checkpoint that was saved or read here before, and has not changed, is not read again."""
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
        """Finish the work of a killed process: complete saves get their names, pieces of others are deleted.
        Returns what was done, in one line each. Call it only if no process saves here."""
        done = []
        commits = list(self._commits())
        for commit in commits:
            if _token(commit.state) and not commit.info.damage:
                self._finish(commit)
                done.append(f"checkpoint {commit.info.label} was whole but not named yet; it is now")
        for path in self.leftovers() if done else self._leftovers(commits):
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
        # The values for a list of checkpoints come first, so that the list need not read the rest.
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
        """Look again at the files that were saved here, as soon as a change would give them another time.
        Without this the next list would read all of them."""
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
        """Remove an older checkpoint of this label: from now on the new one, whole under its temporary names,
        replaces it."""
        label = _commit_label(state.name)
        known = [name for name in files.names_in(self.path) if _commit_label(name) == label]
        if known:
            files.sync_directory(self.path)
            for name in known:
                files.unlink(self.path / name)
            files.sync_directory(self.path)

    def _give_names(self, state: RunPath, paths: Iterable[RunPath], token: str) -> None:
        """Give the files their final names, the commit last; all bytes are on the disk already."""
        final = self.path / _final_name(state.name)
        self._make_way(final)
        for path in paths:
            files.rename(durable.temporary_name(path, token), path)
        files.sync_directory(self.path)
        files.rename(state, final)
        files.sync_directory(self.path)

    def _finish(self, commit: _Commit) -> None:
        """Finish the renames of a save that is whole but was killed between them."""
        token = _token(commit.state)
        unnamed = [self.path / _final_name(name) for name in _names(commit) if _token(name) == token]
        self._give_names(self.path / commit.state, unnamed, token)

    def _finish_failed(self) -> None:
        """After a failed save of this process: finish it if its files are whole, else delete them."""
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
        """Delete what an error kept from being deleted before, unless a checkpoint still needs it."""
        if not self._undeleted:
            return
        with suppress(OSError):  # it is tried again
            files.sync_directory(self.path)
            for path in self._undeleted.intersection(self.leftovers()):
                files.unlink(path)
            self._undeleted.clear()

    def _make_folder(self) -> None:
        """Make the folder, and wait until it and the names that lead to it are on the disk."""
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
        """Every commit file (or only those of a label), under its final or its temporary name. Of two with
        one label this is the one with the final name, unless only the other is complete."""
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
                # A save that was renamed meanwhile was seen under neither name.
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
                continue  # pieces of a save that was killed, or that is not finished yet
            found[match[1]] = commit
        return found

    def _look(self, folder: files.Folder, name: str, label: str, suffix: str, there: _Names) -> _Commit:
        """The contents of a commit file; those of the last time, if no file has changed since."""
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
            # Under a temporary name it may be half written, the outline before the tensors: read all of it.
            return checked(recorder.decode(file), file.path)
        read_head = getattr(recorder, "head", None)  # asking for the protocol takes longer than reading it
        head = None if read_head is None else read_head(file, REST)
        if head is None or not {"files", "sequence"} <= head.value.keys():  # of the version before, say
            return checked(recorder.outline(file), file.path)
        return checked(head, file.path, only_head=True)

    def _understood(
        self, said: Mapping[str, Any], size: int, name: str, recorder: Recorder, there: Container[str]
    ) -> _Commit:
        """A commit file's contents with the names of its parts. The names are computed, and not taken from
        the file, which may be a stranger's."""
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
        for commit in self._commits(info.label):  # it may have been renamed meanwhile
            if commit.info.damage:
                raise DamagedError(commit.info.damage)
            return commit
        raise StateError(f"there is no checkpoint {info.label} any more; {_listed(self.list())}")

    def _as_saved(self, info: CheckpointInfo) -> _Commit | None:
        """A commit that has not changed since it was saved or read; nothing is read."""
        seen = self._seen.get(info.files.get("state", ""))
        if seen is None:
            return None
        with files.opened_folder(self.path) as folder:
            there = folder.stats([seen.commit.state, *_names(seen.commit)])
        return seen.commit if seen.signature == _signature(seen.commit, there) else None

    def _rule(self, whole: Sequence[CheckpointInfo]) -> KeepBest:
        """The rule for "best" in this run, from its newest commit."""
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
    """What the name alone says of a checkpoint."""
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
    """The message for a user whose disk refuses a checkpoint."""
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
    """Whether the tick in which the newest of the files was written is over."""
    return time.time_ns() - max(each[1] for each in signature if each is not None) > _TICK


def _signature(commit: _Commit, there: _Names) -> _Signature:
    return tuple(
        (found.st_size, found.st_mtime_ns, found.st_ino) if (found := there.get(name)) is not None else None
        for name in (commit.state, *_names(commit))
    )


def _token(name: str) -> str:
    """The part of a temporary name that differs for each save; empty for a file with its final name."""
    match = _TEMPORARY.fullmatch(name)
    return match[2] if match else ""


def _final_name(name: str) -> str:
    match = _TEMPORARY.fullmatch(name)
    return match[1] if match else name


def _commit_label(name: str) -> str | None:
    match = _COMMIT.fullmatch(name)
    return match[1] if match else None


def _sync_names_above(path: Path) -> None:
    """Wait until the names that lead to a folder are on the disk. Which of them are new is not known: the
    logs made the run's directory, and perhaps those above it, long before the first checkpoint."""
    for above in path.absolute().parents:
        with suppress(PermissionError):  # this process did not make a directory that it may not read
            files.sync_directory(above)
        if os.path.ismount(above):
            return
