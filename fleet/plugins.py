"""What users bring along: objects under an import path ``module:name``, wanted where a table has names."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleet.errors import UserError
from preprocess.base import InputError, import_object
from preprocess.user_code import UserCode
from scheduler.base import Cluster, Options, Progress, RateTable, Round
from scheduler.base import InputError as RoundError
from scheduler.ensemble.policies import POLICIES, Decide, Policy, check_round


def load_object(path: str, role: str) -> Any:
    """Load the object that an import path names, from the working folder, the spec's or packages.

    Args:
        path: ``module:name``.
        role: what it is wanted as, for messages: ``policy``, ``engine``.

    Raises:
        UserError: the module cannot be imported, or has no such name.
    """
    try:
        return import_object(path, role, f"module:{role}")
    except InputError as error:
        raise UserError(
            " ".join(str(error).split())
        ) from error  # the user's module may raise several lines


def load_named(name: str, kind: str, names: Iterable[str], role: str) -> Any:
    """Load the object of a name that is not in its table, by its import path.

    Args:
        kind: the kind of object, for messages, such as ``policy``.
        names: those of the table, for messages.
        role: as in :func:`load_object`.

    Raises:
        UserError: it is no import path, or leads nowhere.
    """
    if ":" not in name:
        raise UserError(
            f"no {kind} is named {name!r}; one of {', '.join(names)}, or an import path module:{role}"
        )
    return load_object(name, role)


def append_import_path(folder: Any) -> None:
    """Find modules in a folder, too, where they were in a run; nothing where there is no such folder."""
    if isinstance(folder, str) and folder and folder not in sys.path and Path(folder).is_dir():
        sys.path.append(folder)


def find_policy(name: str) -> Policy:
    """Return the policy of a name, or of an import path.

    Args:
        name: of :data:`~scheduler.ensemble.policies.POLICIES`; or ``module:policy``, which is a
            :class:`~scheduler.ensemble.policies.Policy` or a function of (rates, progress, cluster,
            options).

    Returns:
        The policy, under that name. The answers of one that is not ours are looked at: it raises
        :class:`~fleet.errors.UserError` where they cannot be carried out, or where its function
        raises anything.

    Raises:
        UserError: there is none.

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
        f"policy {name!r} is {description}; it should be a Policy, or a function of (rates, progress, cluster, "
        "options)"
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
        except RoundError as error:
            raise UserError(f"the policy {name} {error}") from None
        return answer

    return checked
