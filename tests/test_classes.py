"""No class of the four packages has too many methods: each has one idea."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_METHODS = 25


def classes(package):
    """Yield the path and name of each class of a package, and its number of methods."""
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                methods = [
                    statement
                    for statement in node.body
                    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
                ]
                yield f"{path.relative_to(ROOT)} {node.name}", len(methods)


@pytest.mark.parametrize("package", ["fleet", "scheduler", "preprocess", "launch"])
def test_classes_have_at_most_25_methods(package):
    assert [name for name, count in classes(package) if count > MAX_METHODS] == []
