"""Tests of invalid input of users: one line that explains it, and status 2."""

import pytest
import yaml

from fleet.__main__ import main


@pytest.fixture
def checked(tmp_path, capsys):
    """Return a function that runs ``fleet check`` on a spec: status and mistakes."""

    def check(**parts):
        file = tmp_path / "spec.yaml"
        file.write_text(
            yaml.safe_dump(
                {"models": [{"family": "softmax"}], "resources": {"engine": "numpy"}, **parts}
            )
        )
        status = main(["check", str(file)])
        return status, capsys.readouterr().err

    return check


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "measures",
            "sample 1 has the label 0.125, of type float64; labels should be 60 integers from 0 to "
            "2",
        ),
        ("too_many_classes", "sample 3 has the label 3 (and 14 more), not one of the 3 classes"),
        ("one_hot", "its labels are an array of shape (60, 3) for 60 samples"),
    ],
)
@pytest.mark.parametrize("validation", [None, 0.25])
def test_check_reports_invalid_labels_in_one_line(checked, tmp_path, source, message, validation):
    status, output = checked(
        data={"source": f"tests.sources:{source}", "path": "60", "validation": validation}
    )
    assert (status, output.count("\n")) == (2, 1)
    assert output.startswith(
        f"fleet check: {tmp_path}/spec.yaml:1: data: tests.sources:{source} of 60: {message}"
    )
