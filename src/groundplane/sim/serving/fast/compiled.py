"""The compiler, and a cache of what it made that is never stale.

numba's cache looks at the file of a function alone, not at those of the functions it calls or the constants
it uses; so all is thrown away when any of the files that are compiled has changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from numba import config, njit

from groundplane.control import autoscale, routing

_STAMP: Final = "compiled.digest"

_F = TypeVar("_F", bound=Callable[..., object])
_INNER: Final = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""What only compiled functions call needs no way in from Python; numba's type stubs do not know of it."""


def compiled(function: _F) -> _F:
    """Compiles a function that compiled ones call, and Python must not: it has no way in.

    Integers divide as in Python; indices are not checked.
    """
    return cast(_F, cast(Any, njit)(cache=_CACHE, error_model="numpy", **_INNER)(function))


def called_from_python(function: _F) -> _F:
    """Compiles a function that Python calls."""
    return cast(_F, njit(cache=_CACHE, error_model="numpy")(function))


def _can_cache() -> bool:
    """Whether numba finds a folder that it can write: beside the sources, or the user's cache."""
    try:
        njit(cache=True)(_can_cache)
    except RuntimeError:
        return False
    return True


_CACHE: Final = _can_cache()


def discard_stale() -> None:
    """Empties numba's cache if sources have changed since it was written; to be called before compiling."""
    here = Path(__file__).parent
    others = [Path(str(module.__file__)) for module in (autoscale, routing)]
    shared = [here.parent / name for name in ("iteration.py", "outcome.py", "prepare.py")]
    digest = hashlib.sha256(
        b"".join(path.read_bytes() for path in (*sorted(here.glob("*.py")), *shared, *others))
    )
    chosen = getattr(config, "CACHE_DIR", "")
    if chosen:
        # A folder that the user chose holds caches of several versions: each has one of its own in it.
        setattr(config, "CACHE_DIR", str(Path(chosen) / f"groundplane-{digest.hexdigest()[:16]}"))  # noqa: B010
        return
    folders = {path.parent / "__pycache__" for path in (here / "compiled.py", *others)}
    stamp = here / "__pycache__" / _STAMP
    try:
        if stamp.is_file() and stamp.read_text() == digest.hexdigest():
            return
        for folder in folders:
            for pattern in ("*.nbi", "*.nbc"):
                for old in folder.glob(pattern):
                    old.unlink(missing_ok=True)
        stamp.parent.mkdir(exist_ok=True)
        stamp.write_text(digest.hexdigest())
    except OSError:
        # A folder that cannot be written has no cache of ours that could be stale.
        return


discard_stale()
