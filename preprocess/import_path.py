"""Load what users, and our tables, name by an import path ``module:name``.

This is the only loader. It is in this package because sources and transforms are named by import
paths, too, and code of users is imported by :mod:`preprocess.user_code`.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

from launch.errors import InputError, did_you_mean, in_one_line
from preprocess.base import format_exception
from preprocess.user_code import import_user_module


def import_object(path: str, role: str, form: str = "module:function") -> Any:
    """Import the object at ``module:name``; the working directory is searched too.

    Args:
        path: such as ``my_package.my_module:my_function``.
        role: its use, for the message: ``transform``, ``data source``.
        form: the expected form of the path, for the message.

    Raises:
        InputError: the module or name does not exist, or importing the module raises. The message
            is one line.
    """
    module_name, _, name = path.partition(":")
    if not (module_name and name):
        raise InputError(f"{role} {path!r} is not an import path {form}")
    folder = os.getcwd()
    if not {"", folder} & {*sys.path}:
        sys.path.append(folder)
    try:
        module = import_user_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a user's module may raise anything, and exit
        reason = in_one_line(format_exception(error))
        raise InputError(f"{role} {path!r}: cannot import {module_name!r}: {reason}") from error
    imported = getattr(module, name, None)
    if imported is None:
        hint = did_you_mean(name, dir(module))
        raise InputError(f"{role} {path!r}: module {module_name!r} has no {name!r}{hint}")
    return imported


def import_function(path: str, role: str) -> Any:
    """Import the function at ``module:function``; see :func:`import_object`.

    Raises:
        InputError: the module or function does not exist, or the object is not callable.
    """
    function = import_object(path, role)
    if not callable(function):
        raise InputError(f"{role} {path!r} is a {type(function).__name__}, not a function")
    return function


def import_own(path: str, package: str | None = None) -> Any:
    """Import an object of FLEET that a table names, without what code of users needs.

    Args:
        path: ``module:name``.
        package: the package of a path that begins with a dot.
    """
    module, _, name = path.partition(":")
    return getattr(import_module(module, package), name)
