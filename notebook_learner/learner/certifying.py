"""Replays a learner's run, and writes the certificate of it."""

from __future__ import annotations

import os

from ..artifacts.certificate import NAME, Certificate, digest_of_record, states_in
from ..run.bounds import counted
from ..store import durable
from ..store.layout import RunLayout
from ..trial.certify import Certification, replay, stretches_of
from .core import LearnerCore


def certify(learner: LearnerCore, segments: int | None) -> Certification:
    """Replay the run, or so many stretches of it, and write what was found into its directory."""
    if segments is not None:
        counted("verify", segments, "replay at least one stretch", "segments")
    learner._enter()
    replica, directory = learner._replica, learner._opened.directory
    replica.saving.close()
    stretches = stretches_of(replica, segments)
    taken, differs = replay(replica, stretches)
    record, recipe = learner.history.snapshot(), learner._supplies.recipe.members()
    certificate = Certificate(
        steps=sum(part.steps for part in record if part.split == "train"),
        replayed=taken,
        record=digest_of_record(record),
        states=states_in(directory),
        data={name[5:]: each for name, each in recipe.items() if name.startswith("data.")},
        versions=learner._supplies.recipe.versions(),
        differs="" if differs is None else str(differs),
    )
    data = certificate.to_json().encode()
    path = RunLayout(directory).directory / NAME
    durable.replace(path, [data], len(data))
    return Certification(certificate, len(stretches), os.fspath(path), differs)
