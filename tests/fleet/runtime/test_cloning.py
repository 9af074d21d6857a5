"""Clones for the next launch of a run."""

import pytest

from fleet.errors import ExitStatus, UserError
from fleet.runtime.cloning import clone_for_next_launch
from fleet.spec.clones import CloneRequest
from fleet.storage.paths import RunPaths
from tests.fleet.runtime.test_searching import Run

pytestmark = pytest.mark.usefixtures("quick")

REQUEST = CloneRequest.parse(
    {"do": "clone", "network": "a", "values": {}, "warm": False, "name": None}
)


@pytest.fixture
def run(tmp_path):
    run = Run(tmp_path, {}, models=[{"family": "softmax", "name": "a"}], epochs=1)
    assert run.launch() is ExitStatus.OK
    return run


def test_clone_goes_to_the_log_of_the_newest_launch(run):
    killed = RunPaths(run.paths.root, "zz-killed-early").events
    killed.parent.mkdir()
    killed.touch()
    assert clone_for_next_launch(run.paths, REQUEST) == ["a-clone"]
    assert run.launch() is ExitStatus.OK
    assert sorted(run.rows()) == ["a", "a-clone"]


def test_clone_needs_a_launch_that_has_begun(run):
    run.paths.events.write_text("")
    with pytest.raises(UserError, match="no event of any launch"):
        clone_for_next_launch(run.paths, REQUEST)
