"""The pages that the site adds to those of docs/; `make docs` checks all links."""

import importlib.util
import re

import pytest
import yaml

from fleet import api
from fleet.__main__ import COMMANDS, HIDDEN, make_parser
from tests.places import ROOT

_spec = importlib.util.spec_from_file_location("site_pages", ROOT / "tools/site/pages.py")
pages = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(pages)


def navigation(entries):
    """Return the pages that a navigation names."""
    for entry in entries:
        for target in entry.values() if isinstance(entry, dict) else [entry]:
            yield from [target] if isinstance(target, str) else navigation(target)


def configuration():
    """Return the settings of MkDocs, without the objects of its own."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return yaml.safe_load(re.sub(r"!!python\S+", "", text))


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - HIDDEN.keys()))
def test_commands_page_has_every_option(name):
    section = pages.commands_page().partition(f"\n### fleet {name}\n")[2].partition("\n### ")[0]
    for action in make_parser(name)._actions:
        for option in action.option_strings:
            assert option in ("-h", "--help") or f"`{option}" in section


def test_api_page_has_every_name_once():
    names = re.findall(r"^::: fleet\.api\.(\w+)$", pages.api_page(), re.MULTILINE)
    assert sorted(names) == sorted(api.__all__)


def test_navigation_has_every_page():
    files = {str(file.relative_to(ROOT / "docs")) for file in (ROOT / "docs").rglob("*.md")}
    generated = {page for page in pages.generated_pages() if not page.startswith("source/")}
    moved = {file.removeprefix("docs/") for file in pages.MOVED if file.startswith("docs/")}
    assert sorted(navigation(configuration()["nav"])) == sorted(files - moved | generated)


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("index.md", "[a](docs/spec.md#data)", "[a](spec.md#data)"),
        ("index.md", "![a](docs/figures/roles.svg)", "![a](figures/roles.svg)"),
        ("core.md", "[a](../CONTRIBUTING.md#commits)", "[a](contributing.md#commits)"),
        ("design/search.md", "[a](../spec.md)", "[a](../spec.md)"),
        ("batch.md", "[a](../launch/sites.py)", "[a](source/launch/sites.py.md)"),
        ("data.md", "[a](README.md)", "[a](pages.md)"),
        ("data.md", "[a](https://optuna.org) [b](#b)", "[a](https://optuna.org) [b](#b)"),
    ],
)
def test_with_site_links(page, text, expected):
    assert pages.with_site_links(text, page) == expected


def test_generated_pages_show_linked_files():
    assert "def tiny_vit" in pages.generated_pages()["source/examples/my_models.py.md"]
