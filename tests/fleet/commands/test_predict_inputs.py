"""Tests of ``fleet predict`` with several inputs, with a stand-in for Keras."""

import csv
import io
import json

import h5py
import numpy as np
import pytest
from PIL import Image

from fleet import predictor
from fleet.api import Predictor
from fleet.domain.network import NetworkStatus, Outcome
from fleet.errors import UserError
from fleet.prediction.sample_file import write_sample
from fleet.spec import dump, parse
from fleet.storage.paths import RunPaths
from preprocess.sample import ArraySpec, SampleSpec
from preprocess.source import open_data
from preprocess.sources.table import columns_of
from preprocess.target import TargetSpec
from tests.fleet.histories import apply_status, record, results_of
from tests.refusals import refused as refusing

FACTS = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
PHOTOS = np.arange(3 * 16, dtype=np.uint8).reshape(3, 4, 4, 1)
TARGET = TargetSpec("value", 1)
SPECS = {"photo": ArraySpec((4, 4, 1), "uint8"), "facts": ArraySpec((2,), "float32")}
SAMPLE = SampleSpec.of_parts(
    {name: SampleSpec(array, 1, None, None, TARGET) for name, array in SPECS.items()}, TARGET
)
SUMS = PHOTOS.sum((1, 2, 3)) + 100 * FACTS.sum(1)


class StandIn:
    """A network whose output is a sum over all inputs."""

    def predict(self, inputs):
        facts = 100 * inputs["facts"].sum(1)
        return (inputs["photo"].sum((1, 2, 3)) + facts)[:, None].astype(np.float32)


@pytest.fixture
def make_run(tmp_path, monkeypatch):
    """Make a run of networks of two inputs."""
    monkeypatch.setattr(predictor, "load_ensemble", lambda *arguments: StandIn())

    def make(source, options, transforms=None, columns=None):
        paths = RunPaths(tmp_path / "run")
        data = {"source": source, "path": "gone", "options": options, "target": "value"}
        spec = parse(
            {
                "models": [{"family": "softmax", "name": "net"}],
                "data": {**data, "transforms": transforms or {}},
            }
        )
        results = results_of(spec, paths)
        apply_status(results, "net", NetworkStatus((record(1),), Outcome("1 epoch")))
        paths.exported("net", ".keras").parent.mkdir(parents=True)
        paths.exported("net", ".keras").touch()
        paths.spec.write_text(dump(spec.document))
        write_sample(paths, SAMPLE, {"": ()}, columns)
        return paths.root

    return make


@pytest.fixture
def run(make_run):
    return make_run("npz", {"inputs": {"photo": "pixels", "facts": "facts"}, "targets": "y"})


def values_of(answer):
    return [next(iter(line["values"].values())) for line in answer["images"]]


def test_predict_takes_an_npz_file_of_the_inputs(run, tmp_path, fleet):
    np.savez(tmp_path / "new.npz", pixels=PHOTOS, facts=FACTS, y=np.zeros(3))
    status, answer, _ = fleet("predict", run, tmp_path / "new.npz", "--json")
    assert status == 0
    assert values_of(answer) == SUMS.tolist()
    assert answer["images"][2]["image"] == f"{tmp_path}/new.npz[2]"


def test_predict_takes_arrays_by_the_names_of_inputs(run, tmp_path, fleet):
    np.savez(tmp_path / "new.npz", photo=PHOTOS, facts=FACTS)
    assert values_of(fleet("predict", run, tmp_path / "new.npz", "--json")[1]) == SUMS.tolist()


def test_predict_takes_a_folder_of_npy_files(run, tmp_path, fleet):
    (tmp_path / "new").mkdir()
    np.save(tmp_path / "new/photo.npy", PHOTOS)
    np.save(tmp_path / "new/facts.npy", FACTS)
    assert values_of(fleet("predict", run, tmp_path / "new", "--json")[1]) == SUMS.tolist()


@pytest.mark.parametrize("group", ["", "test/"])
def test_predict_takes_an_hdf5_file_of_encoded_images(run, tmp_path, fleet, group):
    with h5py.File(tmp_path / "new.h5", "w") as file:
        files = file.create_dataset(f"{group}photo", 3, h5py.vlen_dtype(np.uint8))
        for row, photo in enumerate(PHOTOS):
            content = io.BytesIO()
            Image.fromarray(photo[:, :, 0]).save(content, "PNG")
            files[row] = np.frombuffer(content.getvalue(), np.uint8)
        file[f"{group}facts"] = FACTS
    status, answer, error = fleet("predict", run, tmp_path / "new.h5", "--json")
    assert (status, error) == (0, "")
    assert values_of(answer) == SUMS.tolist()


def test_predict_names_an_input_that_a_file_lacks(run, tmp_path, refused):
    np.savez(tmp_path / "new.npz", facts=FACTS, age=FACTS)
    message = refused("predict", run, tmp_path / "new.npz")
    assert "new.npz: no array 'pixels' or 'photo' for the input photo" in message
    assert "there are age, facts" in message


def test_predict_refuses_inputs_of_other_lengths(run, tmp_path, refused):
    np.savez(tmp_path / "new.npz", photo=PHOTOS, facts=FACTS[:2])
    message = refused("predict", run, tmp_path / "new.npz")
    assert "photo has 3 rows and facts 2" in message


def test_predict_refuses_an_input_of_another_shape(run, tmp_path, refused):
    np.savez(tmp_path / "new.npz", photo=PHOTOS, facts=FACTS[:, :1])
    message = refused("predict", run, tmp_path / "new.npz")
    assert "new.npz[0] (facts): is 1 float32; the others are 2 float32" in message


def test_predict_refuses_an_image_for_several_inputs(run, tmp_path, refused):
    Image.fromarray(PHOTOS[0, :, :, 0]).save(tmp_path / "new.png")
    message = refused("predict", run, tmp_path / "new.png")
    assert "new.png gives no samples of several inputs (photo, facts)" in message
    assert "an .npz or HDF5 file" in message


def write_table(folder, names):
    """Write photos and a table with their paths; return the path of the table."""
    (folder / "photos").mkdir()
    with open(folder / "new.csv", "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(names)
        for row, (photo, facts) in enumerate(zip(PHOTOS, FACTS, strict=True)):
            Image.fromarray(photo[:, :, 0]).save(folder / f"photos/{row}.png")
            cells = {"path": f"photos/{row}.png", "age": facts[0], "height": facts[1], "y": row}
            table.writerow([cells[name] for name in names])
    return folder / "new.csv"


@pytest.fixture
def run_of_table(make_run, tmp_path):
    (tmp_path / "trained").mkdir()
    trained = write_table(tmp_path / "trained", ["path", "age", "height", "y"])
    options = {"inputs": {"photo": {"files": "path"}, "facts": ["age", "height"]}, "targets": "y"}
    opened = open_data("table", str(trained), None, 0, options).train
    return make_run("table", options, {"photo": [{"decode": {"mode": "L"}}]}, columns_of(opened))


def test_predict_takes_a_table_with_a_column_of_files(run_of_table, tmp_path, fleet):
    table = write_table(tmp_path, ["height", "path", "age"])
    status, printed, _ = fleet("predict", run_of_table, table)
    assert status == 0
    rows = list(csv.DictReader(printed.splitlines()))
    assert [float(row["y"]) for row in rows] == SUMS.tolist()


def test_predict_names_a_column_that_a_table_lacks(run_of_table, tmp_path, refused):
    table = write_table(tmp_path, ["path", "age"])
    assert "no column 'height'" in refused("predict", run_of_table, table)


def test_predict_names_a_file_that_is_missing(run_of_table, tmp_path, refused):
    table = write_table(tmp_path, ["path", "age", "height"])
    (tmp_path / "photos/1.png").unlink()
    assert "photos/1.png" in refused("predict", run_of_table, table)


def test_predict_names_what_a_run_of_a_table_takes(run_of_table, tmp_path, refused):
    Image.fromarray(PHOTOS[0, :, :, 0]).save(tmp_path / "new.png")
    message = refused("predict", run_of_table, tmp_path / "new.png")
    assert "a table with the columns path, age, height, or an .npz" in message


def test_predict_takes_arrays_instead_of_a_table(run_of_table, tmp_path, fleet):
    np.savez(tmp_path / "new.npz", photo=PHOTOS, facts=FACTS)
    answer = fleet("predict", run_of_table, tmp_path / "new.npz", "--json")[1]
    assert values_of(answer) == pytest.approx(SUMS.tolist())


def test_predictor_takes_arrays_by_name(run):
    predicted = Predictor(run).predict({"facts": FACTS.tolist(), "photo": PHOTOS.astype(int)})
    assert predicted[:, 0].tolist() == SUMS.tolist()


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"photo": PHOTOS}, "lack facts"),
        ({"photo": PHOTOS, "facts": FACTS, "age": FACTS}, "have age"),
        ({"photo": PHOTOS, "facts": FACTS[:1]}, "photo 3, facts 1"),
        ({"photo": PHOTOS, "facts": FACTS[:, 0]}, "facts has shape (3,)"),
        ({"photo": PHOTOS + 0.5, "facts": FACTS}, "photo has numbers that are not uint8"),
        (FACTS, "several inputs by name"),
    ],
)
def test_predictor_refuses_other_inputs(run, inputs, message):
    with refusing(UserError, message):
        Predictor(run).predict(inputs)


def test_json_of_several_inputs_is_json_alone(run, tmp_path, fleet):
    np.savez(tmp_path / "new.npz", photo=PHOTOS, facts=FACTS)
    answer = fleet("predict", run, tmp_path / "new.npz", "--json")[1]
    assert json.dumps(answer["networks"]) == '{"net": 1.0}'
