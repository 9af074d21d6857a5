"""Files that people look for: their names and versions agree with the package."""

import configparser

import pytest
import yaml

from tests.places import ROOT


def metadata():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


def test_citation_names_the_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == metadata()["metadata"]["version"]
    assert citation["license"] == metadata()["metadata"]["license"]
    assert citation["authors"] == [{"name": metadata()["metadata"]["author"]}]


def test_citation_names_pages_of_the_docs():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    for paper in citation["references"]:
        page = paper["notes"].rpartition("(")[2].rstrip(")")
        assert paper["authors"][0]["family-names"] in (ROOT / page).read_text(encoding="utf-8")


def test_wheel_declares_its_types():
    assert "py.typed" in metadata()["options.package_data"]["fleet"].split()
    assert (ROOT / "fleet/py.typed").is_file()


@pytest.mark.parametrize("name", ["bug.md", "feature.md"])
def test_issue_templates_have_front_matter(name):
    text = (ROOT / ".github/ISSUE_TEMPLATE" / name).read_text(encoding="utf-8")
    assert {"name", "about", "labels"} == yaml.safe_load(text.split("---\n")[1]).keys()
