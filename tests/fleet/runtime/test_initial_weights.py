"""Initial weights from a file, and resuming without the file."""

import numpy as np
import pytest

from fleet.engines.softmax import NumpyEngine, SoftmaxRegression
from fleet.errors import ExitStatus, SettingError
from fleet.spec.engines import EngineInfo, Known
from fleet.storage.checkpoint import find_newest, read_history
from fleet.storage.identity import file_checksum
from tests.fleet.runtime.runs import launch, write

pytestmark = pytest.mark.usefixtures("quick")


class Pretrained(SoftmaxRegression):
    def load_pretrained(self, file, skip):
        if not file.is_file():
            raise SettingError(f"{file} is not there", "train", "start", "file")
        self._weights = np.load(file)


class PretrainedEngine(NumpyEngine):
    def build(self, network, group):
        plain = super().build(network, group)
        return Pretrained(network, group, plain._sample, plain._weights)


ENGINE = EngineInfo(
    "pretrained", lambda setup: PretrainedEngine(setup.sample), knows=Known(starts=True)
)


def spec(tmp_path):
    return write(
        tmp_path,
        [{"family": "softmax", "name": "a"}],
        schedule={"policy": "global"},
        data={"source": "tests.sources:numbered", "path": "40", "transforms": ["scale"]},
        train={
            "start": "first.npy",
            "batch": {"size": 4},
            "optimizer": {"learning_rate": 1e-9},
            "stopping": {"max_epochs": 3},
        },
        resources={"engine": f"{__name__}:ENGINE", "preprocessors": 0},
    )


def test_history_names_initial_weights_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path, file = spec(tmp_path), tmp_path / "first.npy"
    status, prepared = launch(path, 1)
    assert status is ExitStatus.NETWORK_FAILED
    assert "first.npy is not there" in prepared.paths.failure("a").read_text()
    np.save(file, np.full((17, 3), 0.25))
    before = file_checksum(file)
    launches = []
    status = ExitStatus.RESUMABLE
    while status is ExitStatus.RESUMABLE:  # the network is tried again
        status, prepared = launch(path, 1, after=25 * (len(launches) + 1))
        launches.append(status)
        if read_history(prepared.paths.history("a")):
            file.unlink(missing_ok=True)
    assert (status, len(launches) > 1, file.exists()) == (ExitStatus.OK, True, False)
    state = find_newest(prepared.paths, "a").state
    assert state.arrays["weights"] == pytest.approx(0.25, abs=1e-6)
    assert (
        [record.start for record in state.history]
        == [before, "", ""]
        == [record.start for record in read_history(prepared.paths.history("a"))]
    )
