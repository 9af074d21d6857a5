"""What `fleet predict` prints of several targets."""

from types import SimpleNamespace

import numpy as np
import pytest

from fleet.commands import predict
from fleet.commands.output import only_results
from fleet.predictor import Predictor
from preprocess.record_target import RecordTarget
from preprocess.sample import ArraySpec, SampleSpec
from preprocess.target import TargetSpec

TARGET = RecordTarget.of(
    {
        "price": TargetSpec("value", 1),
        "kind": TargetSpec("class", 2, ("cat", "dog")),
        "place": TargetSpec("value", 2),
    }
)
PREDICTED = {
    "price": np.array([[2.5], [3.0]], np.float32),
    "kind": np.array([[0.25, 0.75], [1.0, 0.0]], np.float32),
    "place": np.array([[1.0, 2.0], [3.0, 4.0]], np.float32),
}


@pytest.fixture
def predictor():
    plain = object.__new__(Predictor)
    plain.sample = SampleSpec(ArraySpec((4,), "float32"), TARGET.outputs, target=TARGET)
    plain.weights = {"a": 1.0}
    plain.folds = {}
    plain._columns = None
    return plain


def test_rows_of_tables_have_columns_by_target(predictor, capsys):
    with only_results():
        predict._print_rows(predictor, {"new.csv": PREDICTED})
    assert capsys.readouterr().out.splitlines() == [
        "row,price,kind,kind cat,kind dog,place 0,place 1",
        "0,2.5,dog,0.25,0.75,1.0,2.0",
        "1,3.0,cat,1.0,0.0,3.0,4.0",
    ]


def test_records_are_by_target(predictor):
    first, _ = predict._records(predictor, PREDICTED)
    assert first == {
        "price": {"values": {"0": 2.5}},
        "kind": {
            "class": "dog",
            "probability": 0.75,
            "probabilities": {"cat": 0.25, "dog": 0.75},
        },
        "place": {"values": {"0": 1.0, "1": 2.0}},
    }


def test_predictor_returns_arrays_by_target(predictor):
    joined = np.concatenate(list(PREDICTED.values()), axis=1)
    predictor._ensemble = SimpleNamespace(predict=lambda inputs: joined)
    predicted = predictor.predict(np.zeros((2, 4), np.float32))
    assert {name: array.tolist() for name, array in predicted.items()} == {
        name: array.tolist() for name, array in PREDICTED.items()
    }
    assert predictor.names == (
        "price 0",
        "kind cat",
        "kind dog",
        "place 0",
        "place 1",
    )
