"""Which recorded text this user's own kernels have run: that alone may run again without being asked for.

The text of a run's directory may be a stranger's. As Jupyter does for the outputs of a notebook, each text is
signed with a key that lies in the user's own folder, and never in a run's.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from functools import cache
from pathlib import Path

KEY = "notebook_learner_key"
"""The file of the key, in IPython's folder."""
_BYTES = 32


def signature(*texts: str | None) -> str | None:
    """What the user's key makes of these texts; None where no key can be kept.

    >>> signature("loss = output.sum()", None) == signature("loss = output.sum()", None)
    True
    >>> signature("loss = output.sum()", None) == signature("loss = output.mean()", None)
    False
    """
    key = _key()
    if key is None:
        return None
    return hmac.new(key, json.dumps(texts).encode(), hashlib.sha256).hexdigest()


@cache
def _key() -> bytes | None:
    from IPython.paths import get_ipython_dir

    file = Path(get_ipython_dir()) / KEY
    try:
        return _read(file) if file.exists() else _made(file)
    except OSError:  # a folder that cannot be written, or belongs to another user
        return None


def _made(file: Path) -> bytes | None:
    """Make the key under a name of its own, so that a kernel that begins meanwhile sees all of it."""
    own = file.with_name(f"{KEY}.{secrets.token_hex(8)}")
    descriptor = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as written:
        written.write(secrets.token_bytes(_BYTES))
    try:
        os.link(own, file)
    except FileExistsError:  # that kernel's key is as good
        pass
    finally:
        own.unlink()
    return _read(file)


def _read(file: Path) -> bytes | None:
    key = file.read_bytes()
    return key if len(key) == _BYTES else None
