"""Tests of what ``help()`` and notebooks show of the API."""

import copy
import pickle
import pydoc
import re

import pytest

from fleet import api
from fleet.spec.section import is_section, key_texts
from fleet.storage.results import Table
from tests.fleet.export.test_files import result

# Python shows the docstring of a class with a metaclass as it is, without the texts of its keys.
SECTIONS = [
    name
    for name in api.__all__
    if is_section(getattr(api, name)) and type(getattr(api, name)) is type
]


def shown_help(thing):
    return pydoc.plain(pydoc.render_doc(thing))


def test_help_of_the_api_fits_two_screens():
    text = shown_help(api)
    assert len(text.splitlines()) <= 100
    assert max(map(len, text.splitlines())) <= 100
    assert not any(re.search(r"\w\.\.\.$", line) for line in text.splitlines())
    for name in ("Search", "Prune", "Range", "Target"):
        for key, meaning in key_texts(getattr(api, name)).items():
            assert f"{key}: {meaning.partition('.')[0][:30]}" in text
    for name in api.__all__:
        assert f"    {name}: " in text
    assert set(api.__all__) <= set(dir(api))


@pytest.mark.parametrize("name", SECTIONS)
def test_help_of_a_section_has_the_text_of_each_key(name):
    section = getattr(api, name)
    text = " ".join(shown_help(section).replace("|", " ").split())
    for key, meaning in key_texts(section).items():
        assert f"{key}: {' '.join(meaning.replace('|', ' ').split())}" in text


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: api.Search(max_trial=3), "Search has no key 'max_trial'; did you mean max_trials"),
        (lambda: api.Search(n_trials=3), "Search has no key 'n_trials'; did you mean max_trials"),
        (lambda: api.Prune(rul="asha"), "Prune has no key 'rul'; did you mean rule"),
        (lambda: api.Range(1, 2, zzz=0), "Range has no key 'zzz'; its keys are low, high, log"),
    ],
)
def test_misspelt_key_of_a_section_names_the_meant_one(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_sections_can_be_copied_and_pickled():
    search = api.Search(max_trials=3, objectives=(api.Objective("val_loss", "minimize"),))
    assert copy.deepcopy(search) == pickle.loads(pickle.dumps(search)) == search


def test_notebook_shows_results_as_a_table():
    rows = Table([result("a<b", {"filters": [8, 16]}, val_mae=0.123456), result("c", {})])
    html = rows._repr_html_()
    assert "<td>a&lt;b</td>" in html
    assert "<th>filters</th>" in html
    assert ("<td>[8, 16]</td>" in html, "<td>0.1235</td>" in html) == (True, True)
    assert "<th>val_loss</th>" not in html  # no network has one
    first = rows[:1]
    assert isinstance(first, Table)
    assert "<td>c</td>" not in first._repr_html_()
    assert rows[0] == first[0]
    again = pickle.loads(pickle.dumps(rows))
    assert again._repr_html_() == copy.copy(rows)._repr_html_() == html
    assert "the first 60 of 61 rows" in Table(result(str(n), {}) for n in range(61))._repr_html_()


def test_notebook_shows_a_written_spec_as_a_table(tmp_path):
    entry = api.ModelEntry(
        family="cnn", search=api.Search(max_trials=8), space={"dropout": api.Range(0, 0.5)}
    )
    document = api.Document(models=(entry, api.ModelEntry(family="softmax", name="plain")))
    spec = api.write_spec(document, tmp_path / "spec.yaml")
    html = spec._repr_html_()
    assert "<td>cnn</td><td>cnn</td><td>up to 8 by random</td><td>dropout</td>" in html
    assert "<td>plain</td><td>softmax</td><td>1</td>" in html
