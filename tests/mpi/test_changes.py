"""A network whose function was edited between two launches."""

import pytest

from tests.mpi.conftest import spec


@pytest.mark.long
def test_changed_function_is_refused_until_decided(launch, tmp_path):
    (tmp_path / "own_models.py").write_text(
        "import numpy as np\nimport starts\n\n\ndef build(input_shape, classes):\n"
        "    return np.full((int(np.prod(input_shape)) + 1, classes), starts.VALUE)\n"
    )
    (tmp_path / "starts.py").write_text("VALUE = 0.0\n")

    def run(epochs, *arguments):
        content = spec(
            tmp_path,
            [{"build": "own_models:build", "name": "a"}, {"family": "softmax", "name": "b"}],
            train={"stopping": {"max_epochs": epochs}},
            schedule={"policy": "baseline"},
        )
        return launch(2, content, *arguments)

    first = run(2)
    assert first.status == 0, first.output
    (tmp_path / "starts.py").write_text("VALUE = 0.5\n")
    for epochs in (2, 3):  # as it stands, and with more to train
        refused = run(epochs)
        assert refused.status == 2
        (line,) = [line for line in refused.output.splitlines() if line.startswith("fleet: ")]
        assert all(
            word in line for word in ("a (starts.py)", "--fresh-network a", "--accept-changes")
        )
        assert [len(refused.history(name)) for name in "ab"] == [2, 2]
    accepted = run(3, "--accept-changes")
    assert accepted.status == 0, accepted.output
    assert [record.accepted for record in accepted.history("a")] == ["", "starts.py", ""]
    assert run(3).status == 0
    (tmp_path / "starts.py").write_text("VALUE = 1.0\n")
    fresh = run(3, "--fresh-network", "a")
    assert fresh.status == 0, fresh.output
    assert [record.accepted for record in fresh.history("a")] == [""] * 3
    assert "a starts over: --fresh-network" in fresh.output
    assert "2 networks, 1 of them already finished" in fresh.output
