"""Old keys of a spec in a launch."""

import pytest

from tests.mpi.conftest import spec


@pytest.mark.long
def test_notice_of_an_old_key_is_printed_once(launch, tmp_path):
    content = spec(tmp_path, [{"family": "softmax"}])
    content["train"]["converge"] = content["train"].pop("stopping", {"max_epochs": 1})
    run = launch(3, content)
    assert run.status == 0, run.output
    assert run.output.count("train.converge is now stopping") == 1
