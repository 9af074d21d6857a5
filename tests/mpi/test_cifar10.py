"""The CIFAR-10 example learns; runs only if the data set is present."""

import tarfile

import pytest
import yaml

from tests.mpi.conftest import ROOT

ARCHIVE = ROOT.parent / "shared" / "data" / "cifar10_jpeg.tar"


@pytest.mark.tensorflow
@pytest.mark.long
@pytest.mark.skipif(not ARCHIVE.exists(), reason="the JPEG files of CIFAR-10 are not here")
def test_every_network_of_the_cifar10_example_learns(launch, tmp_path):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path / "cifar10", filter="data")
    content = yaml.safe_load((ROOT / "examples/cifar10.yaml").read_text())
    content["data"]["path"] = str(tmp_path / "cifar10")
    content["output"] = str(tmp_path / "run")
    run = launch(4, content, timeout=1800)
    assert run.status == 0, run.output
    rows = run.results()
    assert len(rows) == 6
    assert {name.split("-")[0] for name in rows} == {"cnn", "resnet"}
    assert min(row.val_accuracy for row in rows.values()) > 0.35, run.output
