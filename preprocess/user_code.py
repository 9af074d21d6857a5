"""Call user code and restore what it changes in the process.

A user's function may change process-wide settings: the working directory, the environment, Python's
and NumPy's random generators, print options, the default dtype of tensors. The rest of the process
must not see that. So each piece of user code has a :class:`UserCode` and is called inside
:meth:`UserCode.running`. It finds the settings of the launch, and its changes are undone when it
returns. What its later calls need is put back for them: the generators, the environment,
``sys.path`` and the recursion limit as it left them.

What a module changes while it is imported is recorded once (:func:`import_user_module`) and applies
to all user code from that module.
"""

from __future__ import annotations

import gc
import importlib
import locale
import logging
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from types import ModuleType
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Setting:
    """A process-wide setting.

    Attributes:
        get: returns it as a comparable value.
        set: sets it to such a value.
        is_quick: True if reading it is almost free.
        is_rng_state: True if it is the state of a random generator.
        is_persistent: True if later calls of the same code find it as that code left it.
        at_import: the value that every imported module finds; None for the current one.
    """

    get: Callable[[], Any]
    set: Callable[[Any], object]
    is_quick: bool = True
    is_rng_state: bool = False
    is_persistent: bool = False
    at_import: Any = None


SETTINGS: dict[str, Setting] = {}

_GENERATORS = threading.RLock()  # of the thread whose code draws from the global generators
_PATIENCE_S = 5.0


def register(
    name: str,
    get: Callable[[], Any],
    put: Callable[[Any], object],
    is_quick: bool = True,
    is_rng_state: bool = False,
    is_persistent: bool = False,
    at_import: Any = None,
) -> None:
    """Add a setting to restore after user code; an engine adds the settings of its library.

    Args:
        name: the name of the setting.
        get: see :class:`Setting`.
        put: sets it, as ``set`` of :class:`Setting`.
        is_quick: see :class:`Setting`.
        is_rng_state: see :class:`Setting`.
        is_persistent: see :class:`Setting`.
        at_import: see :class:`Setting`.
    """
    SETTINGS[name] = Setting(get, put, is_quick, is_rng_state, is_persistent, at_import)
    _watched.cache_clear()


def seed_generators(seed: int) -> None:
    """Seed the global generators: Python's, NumPy's, and PyTorch's if it is loaded.

    Args:
        seed: below 2**64.
    """
    seed_host_generators(seed)
    torch = sys.modules.get("torch.random")
    if torch:
        torch.manual_seed(seed)


@contextmanager
def exclusive_generators() -> Iterator[None]:
    """Return a context for drawing from the global generators: no other thread seeds them.

    A trainer that prepares its own samples calls user transforms in a thread while it trains. If
    code in another thread does not return, drawing continues after a few seconds.
    """
    is_acquired = _GENERATORS.acquire(timeout=_PATIENCE_S)
    try:
        yield
    finally:
        if is_acquired:
            _GENERATORS.release()


def seed_host_generators(seed: int) -> None:
    """Seed Python's and NumPy's global generators.

    PyTorch's take a hundred times as long if CUDA is not in use.

    Args:
        seed: below 2**64.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)


class UserCode:
    """A piece of user code, with the settings that it has changed.

    Args:
        module: it is from; empty if it is imported inside :meth:`running`.
        keeps_rng_state: True if its next call continues with the random numbers of the last. If
            False, the caller seeds the generators, and no other code draws from them.
    """

    def __init__(self, module: str = "", keeps_rng_state: bool = True) -> None:
        self._module = module
        self._keeps_draws = keeps_rng_state
        self._changes: dict[str, Any] = {}

    def __reduce__(self) -> tuple:
        """On another rank nothing has been changed yet."""
        return UserCode, (self._module, self._keeps_draws)

    @contextmanager
    def running(self, quick: bool = False) -> Iterator[None]:
        """Return a context in which this code is called.

        Nested inside another such context of the thread, it restores what later calls do not find
        either.

        Args:
            quick: True to restore only settings that are almost free to read, for calls below 1 ms.
        """
        if _ACTIVE.code is not None:
            with _restoring():
                yield
            return
        watched = _watched(quick, self._keeps_draws)
        handlers = {}
        if not quick:
            handlers = _handlers()
        before = _enter(watched)
        _ACTIVE.code = self
        try:
            _apply(_BY_IMPORT.get(self._module, {}))
            _apply(self._changes)
            yield
        finally:
            _ACTIVE.code = None
            changed = _leave(before)
            if changed or self._changes:
                unchanged = {
                    name: value for name, value in self._changes.items() if name not in before
                }
                self._changes = unchanged | _persistent(changed)
            _put_handlers(handlers)


def running_user_code(code: UserCode | None, quick: bool = False) -> AbstractContextManager[None]:
    """Return a context for calling user code, if there is any; see :meth:`UserCode.running`.

    Args:
        code: the user code; None for none.
        quick: True to restore only settings that are cheap to read.
    """
    if code is None:
        return nullcontext()
    return code.running(quick)


@contextmanager
def _restoring() -> Iterator[None]:
    before = {
        name: setting.get()
        for name, setting in SETTINGS.items()
        if not (setting.is_persistent or setting.is_rng_state)
    }
    try:
        yield
    finally:
        _restore(before)


@contextmanager
def restoring_process() -> Iterator[None]:
    """Return a context that restores the process, except its random generators."""
    watched = _watched(False, False)
    before = _enter(watched)
    try:
        yield
    finally:
        _leave(before)


class _ActiveCode(threading.local):
    """The user code that this thread is running."""

    code: UserCode | None = None


_ACTIVE = _ActiveCode()
_LOCK = threading.Lock()
_BASELINE: dict[str, Any] = {}  # settings before the first active thread entered
# thread identifier -> number of its open contexts
_CONTEXTS: Counter[int] = Counter()


def abandon(thread: threading.Thread) -> None:
    """Stop waiting for a thread whose call of user code does not return.

    Other threads then record the settings anew, and the thread restores none if it returns after
    all.
    """
    with _LOCK:
        _CONTEXTS.pop(thread.ident or 0, None)


@lru_cache
def _watched(quick: bool, draws: bool) -> dict[str, Callable[[], Any]]:
    """Return the getters of the settings to restore."""
    return {
        name: setting.get
        for name, setting in SETTINGS.items()
        if (setting.is_quick or not quick) and (draws or not setting.is_rng_state)
    }


def _enter(watched: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Record the settings as they were before any thread entered."""
    with _LOCK:
        are_others = bool(_CONTEXTS)
        if not are_others:
            _BASELINE.clear()
        for name, get in watched.items():
            if name not in _BASELINE:
                _BASELINE[name] = get()
        if are_others:
            before = {name: _BASELINE[name] for name in watched}
        else:
            before = _BASELINE.copy()
        _CONTEXTS[threading.get_ident()] += 1
    if are_others:
        _restore(before)  # other threads may have changed it
    return before


def _leave(before: Mapping[str, Any]) -> dict[str, Any]:
    """Restore settings; return the changed ones with the values that they had."""
    thread = threading.get_ident()
    if thread not in _CONTEXTS:
        return {}  # abandoned
    try:
        return _restore(before)
    finally:
        with _LOCK:
            _CONTEXTS[thread] -= 1
            if not _CONTEXTS[thread]:
                del _CONTEXTS[thread]


def _changed(before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the current values of settings that differ from ``before``."""
    now = {name: SETTINGS[name].get() for name in before}
    return {name: value for name, value in now.items() if value != before[name]}


def _restore(before: Mapping[str, Any]) -> dict[str, Any]:
    """Restore settings; return the changed ones with the values that they had."""
    changed = _changed(before)
    _apply({name: before[name] for name in changed})
    return changed


def _persistent(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes that later calls of the same code find."""
    return {
        name: value
        for name, value in changes.items()
        if SETTINGS[name].is_persistent or SETTINGS[name].is_rng_state
    }


def _apply(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        SETTINGS[name].set(value)


# ---- importing modules of the user's -----------------------------------------------------------

_BY_IMPORT: dict[str, dict[str, Any]] = {}  # module -> changes made by its import


def import_user_module(name: str) -> ModuleType:
    """Import a user's module, and change the process as its first import did.

    The module draws the same random numbers in each process, and the generators are restored
    afterwards, so nothing depends on which code imports it first.
    """
    if name in _BY_IMPORT and name in sys.modules:
        _apply(_BY_IMPORT[name])
        return sys.modules[name]
    before = {key: setting.get() for key, setting in SETTINGS.items()}
    seed_generators(0)
    _apply(
        {
            key: setting.at_import
            for key, setting in SETTINGS.items()
            if setting.at_import is not None
        }
    )
    try:
        module = importlib.import_module(name)
    finally:
        _apply({key: value for key, value in before.items() if SETTINGS[key].is_rng_state})
    _BY_IMPORT[name] = {
        key: setting.get() for key, setting in SETTINGS.items() if setting.at_import is not None
    } | _persistent(_changed(before))
    return module


def forget(names: Iterable[str]) -> None:
    """Forget modules, so that they are imported again when next used."""
    for name in names:
        sys.modules.pop(name, None)
        _BY_IMPORT.pop(name, None)


# ---- what a process has ------------------------------------------------------------------------


def _handlers() -> dict[int, Any]:
    """Return the signal handlers; only the main thread can change them."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {number: signal.getsignal(number) for number in _SIGNALS}


def _put_handlers(handlers: Mapping[int, Any]) -> None:
    for number, handler in handlers.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return ""


def _go_to(folder: str) -> None:
    with suppress(OSError):
        os.chdir(folder)


def _environment() -> dict[bytes, bytes]:
    # fifty times as fast as the mapping
    return dict(os.environ._data)  # type: ignore[attr-defined]


def _put_environment(values: Mapping[bytes, bytes]) -> None:
    now = _environment()
    for name in now.keys() - values.keys():
        del os.environb[name]
    for name, value in values.items() - now.items():
        os.environb[name] = value
    if now.get(b"TZ") != values.get(b"TZ"):
        time.tzset()


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _fill(target: list, values: Sequence[Any]) -> None:
    target[:] = values


def _put_filters(filters: list) -> None:
    warnings.filters[:] = filters  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]


def _loggers() -> dict[str, tuple]:
    registered = list(logging.root.manager.loggerDict.values())
    loggers = [logger for logger in registered if isinstance(logger, logging.Logger)]
    return {
        logger.name: (
            logger.level,
            logger.propagate,
            logger.disabled,
            [*logger.handlers],
            [*logger.filters],
        )
        for logger in (logging.root, *loggers)
    }


def _put_loggers(values: Mapping[str, tuple]) -> None:
    for name, (level, propagate, disabled, handlers, filters) in values.items():
        logger = logging.getLogger(None if name == "root" else name)
        logger.setLevel(level)
        logger.propagate = propagate
        logger.disabled = disabled
        logger.handlers[:] = handlers
        logger.filters[:] = filters


def _collecting() -> tuple:
    return gc.isenabled(), gc.get_threshold()


def _put_collecting(value: tuple) -> None:
    enabled, threshold = value
    gc.set_threshold(*threshold)
    (gc.enable if enabled else gc.disable)()


def _numpy_state() -> tuple:
    state: Any = np.random.get_state(legacy=True)
    name, keys, *position = state
    return name, keys.tobytes(), *position


def _put_numpy_state(state: tuple) -> None:
    name, keys, *position = state
    np.random.set_state((name, np.frombuffer(keys, np.uint32), *position))


def attribute_accessors(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Return the getter and setter of an attribute."""
    return partial(getattr, owner, name), partial(setattr, owner, name)


register("the working folder", _folder, _go_to)
register("the environment", _environment, _put_environment, is_persistent=True)
register("the mask of new files", _umask, os.umask, is_quick=False)
register(
    "cores", partial(os.sched_getaffinity, 0), partial(os.sched_setaffinity, 0), is_quick=False
)
register("the folder of temporary files", *attribute_accessors(tempfile, "tempdir"))
register("the time limit of sockets", socket.getdefaulttimeout, socket.setdefaulttimeout)
# Without a value it returns the locale.
_locale = partial(locale.setlocale, locale.LC_ALL)
register("the locale", _locale, _locale, is_quick=False)
register(
    "where modules are found", lambda: [*sys.path], partial(_fill, sys.path), is_persistent=True
)
register("arguments", lambda: [*sys.argv], partial(_fill, sys.argv))
register("the output", *attribute_accessors(sys, "stdout"))
register("the output of errors", *attribute_accessors(sys, "stderr"))
register("the hook of errors", *attribute_accessors(sys, "excepthook"))
register("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit, is_persistent=True)
register("the switch interval", sys.getswitchinterval, sys.setswitchinterval)
register("garbage collection", _collecting, _put_collecting)
register("filters of warnings", lambda: [*warnings.filters], _put_filters)
register("how warnings are shown", *attribute_accessors(warnings, "showwarning"))
register("the level of all loggers", *attribute_accessors(logging.root.manager, "disable"))
register("errors of logging", *attribute_accessors(logging, "raiseExceptions"))
register("loggers", _loggers, _put_loggers, is_quick=False)
register("errors of numpy", np.geterr, lambda values: np.seterr(**values))
register("the call on errors of numpy", np.geterrcall, np.seterrcall)
register(
    "printing by numpy",
    np.get_printoptions,
    lambda values: np.set_printoptions(**values),
    is_quick=False,
)
register("Python's generator", random.getstate, random.setstate, False, is_rng_state=True)
register("NumPy's generator", _numpy_state, _put_numpy_state, False, is_rng_state=True)
