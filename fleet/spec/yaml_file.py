"""Read and write YAML: plain values only, with the line of every key."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from fleet.errors import SpecError, SpecMistake, UserError, shortened
from fleet.spec.origin import key_path
from fleet.spec.schema import Document
from fleet.spec.section import plain
from preprocess.transient_errors import retry_transient


def dump(document: Document, of_run: bool = False) -> str:
    """Return the spec as YAML, without default values.

    Args:
        document: the spec.
        of_run: whether a run stores it; it then contains the key ``defaults``.
    """
    version = {"defaults": document.defaults} if of_run else {}
    return dump_plain({**version, **plain(document)})


def dump_plain(content: Mapping[str, Any]) -> str:
    """Return mappings, lists, text and numbers as the YAML of a spec."""
    return yaml.dump(
        content,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None,
        width=100,
    )


def read_value(text: str) -> Any:
    """Return a value that is written as in a spec, such as on a command line.

    Raises:
        UserError: the text is no YAML.

    >>> read_value("1e-4"), read_value("[8, 16]"), read_value("adam")
    (0.0001, [8, 16], 'adam')
    """
    try:
        return _Loader(text).get_single_data()
    # Not only YAMLError: a tag such as !!int may precede text.
    except (yaml.YAMLError, ValueError, LookupError, RecursionError) as error:
        raise UserError(f"{shortened(text, 80)!r} is no value as in a spec: YAML") from error


class _Loader(yaml.SafeLoader):
    """The safe loader, which reads ``1e-4`` as a number and a date as text."""


class _Dumper(yaml.SafeDumper):
    """The safe dumper, which quotes text that :class:`_Loader` would read as a number."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+[eE][-+]?[0-9]+"), list("-+0123456789")
    )

# A spec is a page of text, numbers, lists and mappings; anything larger is an attack or an
# accident.
_MAX_YAML_NODES = 100_000  # after aliases are expanded
_MAX_YAML_DEPTH = 50
_MAX_FILES = 3  # that a message names
# Characters: longer than any path, and Python does not write integers of more than 4300 digits.
_MAX_YAML_TEXT = 3000
_YAML_TYPES = {
    f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "seq", "map")
}
_YAML_KEYS = {"tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"}
# Characters that file names and terminals do not accept.
_NO_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


def read_yaml(
    path: Path, keys: str = "keys such as `models:` and `data:` at the top level"
) -> tuple[dict[str, Any], dict[tuple, int]]:
    """Read a mapping from a YAML file, with the line of each key path.

    Args:
        path: the file.
        keys: what the file should contain, for the error message.

    Returns:
        The mapping, and key path -> line, counted from 1.

    Raises:
        SpecError: the file does not exist, or contains something else.
    """
    try:
        text = retry_transient(lambda: path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _unreadable(path, error) from None
    except UnicodeDecodeError:
        raise _refused(str(path), None, "is not UTF-8 text", "a YAML file") from None
    file = str(path)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
    except (yaml.YAMLError, RecursionError) as error:
        raise _no_yaml(file, error) from None
    if not isinstance(node, yaml.MappingNode):
        raise _refused(file, 1, "is not a mapping", keys)
    lines: dict[tuple, int] = {}
    mistakes: list[SpecMistake] = []
    for count, (path_of_key, line, wrong, right) in enumerate(_walk(node, ())):
        if count > _MAX_YAML_NODES or len(path_of_key) > _MAX_YAML_DEPTH:
            raise _refused(
                file,
                line,
                f"expands to more than {_MAX_YAML_NODES} values or {_MAX_YAML_DEPTH} levels",
                "a page of YAML without nested aliases",
            )
        lines.setdefault(path_of_key, line)
        if wrong:
            mistakes.append(SpecMistake(file, line, key_path(path_of_key), wrong, right))
    if mistakes:
        raise SpecError(mistakes)
    try:
        return loader.construct_document(node), lines
    # Not only YAMLError: a tag such as !!int may precede text.
    except (yaml.YAMLError, ValueError, LookupError) as error:
        raise _no_yaml(file, error) from None


def _refused(file: str, line: int | None, wrong: str, right: str) -> SpecError:
    """Return an error about a file as a whole."""
    return SpecError([SpecMistake(file, line, "", wrong, right)])


def _unreadable(path: Path, error: OSError) -> SpecError:
    """Return an error about a file that cannot be opened; it names files that may be meant."""
    if isinstance(error, FileNotFoundError):
        wrong = "does not exist"
        by_stem = {file.stem: file for file in _yaml_files(path.parent)}
        files = [by_stem[stem] for stem in difflib.get_close_matches(path.stem, by_stem)]
    elif isinstance(error, IsADirectoryError):
        wrong = "is a folder"
        files = _yaml_files(path)[:_MAX_FILES]
    else:
        wrong = f"cannot be read: {error.strerror}"
        files = []
    right = "give the path of a YAML file"
    if files:
        right = f"did you mean {' or '.join(map(str, files))}?"
    return _refused(str(path), None, wrong, right)


def _yaml_files(folder: Path) -> list[Path]:
    """Return the YAML files in a folder; none if it cannot be read."""
    try:
        return sorted(file for file in folder.iterdir() if file.suffix in (".yaml", ".yml"))
    except OSError:
        return []


def _no_yaml(file: str, error: Exception) -> SpecError:
    mark = getattr(error, "problem_mark", None)
    if isinstance(error, RecursionError):
        problem = "it is nested too deeply"
    else:
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
    return _refused(file, mark.line + 1 if mark else None, f"is not YAML: {problem}", "valid YAML")


def _walk(node: yaml.Node, path: tuple) -> Iterator[tuple[tuple, int, str, str]]:
    """Yield each key path with its line, what is wrong as YAML, and what would be right."""
    yield path, node.start_mark.line + 1, *_fault(node)
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            key_path_below = (*path, str(key.value) if isinstance(key, yaml.ScalarNode) else "?")
            if key.tag not in _YAML_KEYS:
                yield (
                    key_path_below,
                    key.start_mark.line + 1,
                    "is a key, but not text",
                    "text, in quotes if necessary",
                )
            elif key_path_below in seen:
                yield key_path_below, key.start_mark.line + 1, "appears here twice", "each key once"
            else:
                yield key_path_below, key.start_mark.line + 1, *_fault(key)
            seen.add(key_path_below)
            yield from _walk(value, key_path_below)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _walk(value, (*path, index))


def _fault(node: yaml.Node) -> tuple[str, str]:
    """Describe what is wrong with a value as YAML; two empty texts if it is valid."""
    if node.tag not in _YAML_TYPES | _YAML_KEYS:
        return (
            f"has the YAML type {node.tag.removeprefix('tag:yaml.org,2002:')}",
            "text, numbers, lists and mappings",
        )
    if isinstance(node, yaml.ScalarNode) and len(node.value) > _MAX_YAML_TEXT:
        return f"has {len(node.value)} characters", f"at most {_MAX_YAML_TEXT}"
    if isinstance(node, yaml.ScalarNode) and _NO_TEXT.search(node.value):
        return "contains a control character", "printable text"
    return "", ""
