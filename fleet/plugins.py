"""Load user-defined policies and other objects by their import path ``module:name``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleet.errors import UserError
from fleet.vocabulary.foreign_names import did_you_mean_name
from launch.errors import InputError
from preprocess.import_path import import_object
from preprocess.user_code import UserCode
from scheduler.base import Cluster, Options, Progress, RateTable, Round
from scheduler.ensemble.policies import POLICIES, Decide, Policy, check_round


def load_object(path: str, role: str, load: Callable[..., Any] | None = None) -> Any:
    """Load an object by import path, from the working folder, the folder of the spec or packages.

    Args:
        path: ``module:name``.
        role: the purpose of the object, for messages: ``policy``, ``engine``.
        load: imports it from ``path`` and ``role``; :func:`import_object` by default.

    Raises:
        UserError: the module cannot be imported, or does not have this name.
    """
    try:
        if load is not None:
            return load(path, role)
        return import_object(path, role, f"module:{role}")
    except InputError as error:
        raise UserError(str(error)) from error


def load_named(name: str, kind: str, names: Collection[str], role: str) -> Any:
    """Load a user-defined object by the import path that a user gave instead of a built-in name.

    Args:
        name: the import path.
        kind: the kind of object, for messages, such as ``policy``.
        names: the built-in names, for messages.
        role: as in :func:`load_object`.

    Raises:
        UserError: it is not an import path, or nothing can be imported from it.
    """
    if ":" not in name:
        raise UserError(
            f"no {kind} is named {name!r}{did_you_mean_name(name, names)}; use one of "
            f"{', '.join(names)}, or an import path module:{role}"
        )
    return load_object(name, role)


def append_import_path(folder: Any) -> None:
    """Import modules from a folder of an earlier launch, too, if it exists."""
    if isinstance(folder, str) and folder and folder not in sys.path and Path(folder).is_dir():
        sys.path.append(folder)


def find_policy(name: str) -> Policy:
    """Return the policy of a name, or of an import path.

    Args:
        name: a key of :data:`~scheduler.ensemble.policies.POLICIES`; or ``module:policy``, which
            names a :class:`~scheduler.ensemble.policies.Policy` or a function of (rates, progress,
            cluster, options).

    Returns:
        The policy, under that name. The answers of a user-defined policy are validated: it raises
        :class:`~fleet.errors.UserError` if they cannot be carried out, or if its function raises
        anything.

    Raises:
        UserError: the policy cannot be loaded.

    >>> find_policy("global").stream.count
    1
    """
    if name in POLICIES:
        return POLICIES[name]
    code = UserCode()
    with code.running():
        loaded = load_named(name, "policy", sorted(POLICIES), "policy")
    if isinstance(loaded, Policy):
        policy = loaded
    else:
        policy = Policy(name, _function(name, loaded))
    return replace(policy, name=name, decide=_checked(name, policy.decide, code))


def _function(name: str, loaded: Any) -> Decide:
    if callable(loaded) and not isinstance(loaded, type):
        try:
            inspect.signature(loaded).bind(*("rates", "progress", "cluster", "options"))
        except TypeError:
            pass
        else:
            return loaded
    if inspect.isfunction(loaded):
        description = f"the function {loaded.__name__}{inspect.signature(loaded)}"
    else:
        description = f"of type {type(loaded).__name__}"
    raise UserError(
        f"policy {name!r} is {description}; it should be a Policy, or a function of (rates, "
        "progress, cluster, options)"
    )


def _checked(name: str, decide: Decide, code: UserCode) -> Decide:
    def checked(rates: RateTable, progress: Progress, cluster: Cluster, options: Options) -> Round:
        try:
            with code.running():
                answer = decide(rates, progress, cluster, options)
        except Exception as error:  # the user's function may raise anything
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise UserError(f"the policy {name} failed: {reason}") from error
        try:
            check_round(answer, rates, progress, cluster)
        except InputError as error:
            raise UserError(f"the policy {name} {error}") from None
        return answer

    return checked
