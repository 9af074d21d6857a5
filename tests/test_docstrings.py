"""``Args:`` of docstrings name parameters that exist."""

import ast
import re

from tests.places import PACKAGES, ROOT, sources

ARGS = re.compile(r"^Args:\n((?:    .*\n?|\n)+)", re.MULTILINE)
ENTRY = re.compile(r"^    (\*{0,2}\w+(?:, \*{0,2}\w+)*):(?: |$)", re.MULTILINE)


def parameters(function):
    """Return the names of a function's parameters."""
    arguments = function.args
    listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return {
        argument.arg
        for argument in (*listed, arguments.vararg, arguments.kwarg)
        if argument is not None
    }


def fields(node, classes):
    """Return what a class is constructed with: parameters, fields, and those of its bases."""
    names = set()
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
            names |= parameters(statement)
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names.add(statement.target.id)
    for base in node.bases:
        name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
        for definition in classes.get(name, ()):
            if definition is not node:
                names |= fields(definition, classes)
    return names


def documented(node):
    """Return the names under ``Args:`` of a docstring."""
    section = ARGS.search(ast.get_docstring(node) or "")
    if section is None:
        return []
    entries = ENTRY.findall(section.group(1))
    return [name.strip(" *") for entry in entries for name in entry.split(",")]


def test_documented_parameters_exist():
    nodes = [
        (path.relative_to(ROOT), node)
        for package in PACKAGES
        for path in sources(package)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    classes = {}
    for _, node in nodes:
        if isinstance(node, ast.ClassDef):
            classes.setdefault(node.name, []).append(node)
    unknown = []
    for path, node in nodes:
        if isinstance(node, ast.ClassDef):
            accepted = fields(node, classes)
        else:
            accepted = parameters(node)
        if not accepted:  # a protocol, whose docstring describes how it is constructed
            continue
        unknown += [
            f"{path}:{node.lineno} {name}" for name in documented(node) if name not in accepted
        ]
    assert not unknown, "\n".join(unknown)
