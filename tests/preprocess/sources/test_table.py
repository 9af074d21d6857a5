"""Tables of features, and tables of files."""

import bz2
import csv
import gzip
import lzma
import pickle
import sys
from decimal import Decimal

import numpy as np
import pytest
from PIL import Image

from launch.errors import InputError
from preprocess.base import Source, UnreadableSample
from preprocess.source import open_data
from preprocess.sources.table import open_table
from preprocess.target import TargetSpec, TargetWish
from tests.preprocess.samples import pattern, write
from tests.refusals import refused


@pytest.fixture
def table(tmp_path):
    def table(*rows, name="t.csv", **options):
        with open(tmp_path / name, "w", newline="", encoding="utf-8") as file:
            csv.writer(file, **options).writerows(rows)
        return str(tmp_path / name)

    return table


PEOPLE = (["age", "height", "target"], [30, 1.7, 2.5], [40, 1.8, 3.5], [50, 1.9, 4.5])


def test_columns_without_another_purpose_are_features(table):
    source, validation, test = open_table(table(*PEOPLE))
    assert isinstance(source, Source)
    assert (validation, test) == (None, None)
    assert source.read(1).tolist() == pytest.approx([40, 1.8])
    assert source.read(1).dtype == np.float32
    assert (source.target, source.targets.tolist()) == (
        TargetSpec("value", 1),
        [[2.5], [3.5], [4.5]],
    )
    assert source.name(1).endswith("t.csv line 3")


def test_options_choose_the_columns(table):
    path = table(["a", "b", "c", "d"], [1, 2, 3.5, 1], [4, 5, 6.5, 0])
    source, _, _ = open_table(path, inputs=["b"], targets=["c", "a"], weights="d")
    assert [source.read(row).tolist() for row in (0, 1)] == [[2], [5]]
    assert source.targets.tolist() == [[3.5, 1], [6.5, 4]]
    assert (source.target, source.weights.tolist()) == (TargetSpec("value", 2, ("c", "a")), [1, 0])


def test_open_table_matches_features_of_splits_by_name(table):
    path, options = table(*PEOPLE), {"targets": "target"}
    rows = (["id", "target", "height", "age"], [7, 2.5, 1.7, 30])
    validation, third = (table(*rows, name=name) for name in ("v.csv", "w.csv"))
    data = open_data("table", path, validation, 0, options, third)
    assert (
        data.validation.read(0).tolist()
        == data.test.read(0).tolist()
        == data.train.read(0).tolist()
    )
    with refused(InputError, "v.csv", "'height'"):
        open_data(
            "table",
            path,
            table(["size", "age", "target"], [1.7, 30, 2.5], name="v.csv"),
            0,
            options,
        )


def test_table_parquet_file_is_read_in_the_same_way(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    labels = pyarrow.array(list("xyx")).dictionary_encode()
    columns = {"age": [30, 40, 50], "fit": [True, False, True], "target": labels}
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    source, _, _ = open_table(str(tmp_path / "t.parquet"))
    assert source.read(0).tolist() == [30, 1]
    assert (source.classes, source.labels.tolist()) == (("x", "y"), [0, 1, 0])
    parquet.write_table(
        pyarrow.table({"age": [30, None, 50], "target": [1.5, 2.5, 3.5]}), tmp_path / "t.parquet"
    )
    with pytest.raises(
        InputError, match=r"t.parquet row 1, column 'age': no value; fill it, or leave the row out"
    ):
        open_table(str(tmp_path / "t.parquet"))


def test_without_pyarrow_a_parquet_file_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "t.parquet").touch()
    with pytest.raises(
        InputError, match="read by pyarrow, which is not installed; pip install pyarrow, or"
    ):
        open_table(str(tmp_path / "t.parquet"))


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ((["a", "a", "target"], [1, 2, 3.5]), "t.csv line 1: two columns are named 'a': 1 and 2"),
        ((["", "a", "target"], [0, 1, 2.5]), "t.csv line 1: column 1 has no name"),
        (
            ([1, 2, 3], [4, 5, 6]),
            "t.csv line 1: 1, 2, 3 are numbers; the first line should hold the names",
        ),
        ((["a", "target"],), "t.csv: no rows below the header"),
        ((["a", "target"], [1, 2.5], [1, 2, 3]), "t.csv line 3: 3 cells in a table of 2 columns"),
        (
            (["a", "target"], [1, 2.5], ["", 1.5], ["", 3.5]),
            r"line 3, column 'a': no value \(and 1 more\); fill it",
        ),
        ((["a", "target"], [1, 2.5], ["nan", 1.5]), "line 3, column 'a': no value"),
        ((["a", "target"], [1, 2.5], [2, "NA"]), "line 3, column 'target': no value"),
        (
            (["a", "target"], [1, 2.5], [2, 3.5], ["3x", 1.5]),
            "line 4, column 'a': '3x' is not a number, unlike '1' in line 2",
        ),
        (
            (["a", "target"], [1, "x"], [2, "y"], [3, 7]),
            "line 4, column 'target': '7' is a number, unlike 'x' in line 2",
        ),
        (
            (["a", "target"], ["red", 1.5], ["blue", 2.5]),
            "no column is left|'a': 'red' is not a number|no file red",
        ),
        ((["a", "target"], ["inf", 1.5]), "line 2, column 'a': inf is not finite"),
        ((["a", "b"], [1, 2]), "no column 'target' for targets; its columns: a, b"),
        (
            (["a", "Target"], [1, 2]),
            "no column 'target' for targets; near it: 'Target'; its columns: a, Target",
        ),
        ((["target"], [1]), "no column is left for inputs"),
    ],
)
def test_mistakes_are_named_by_their_row_and_column(table, rows, complaint):
    with pytest.raises(InputError, match=complaint):
        open_table(table(*rows))


def test_columns_of_text_among_several_features_are_refused(table):
    with pytest.raises(
        InputError,
        match="line 2, column 'b': 'red' is not a number, but a feature must be; encode it",
    ):
        open_table(table(["a", "b", "target"], [1, "red", 1.5], [2, "blue", 2.5]))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"inputs": ["age", "age"]}, "column 'age' is named twice"),
        ({"inputs": ["age", "target"]}, "column 'target' is among the inputs and the targets"),
        ({"weights": "trust"}, "no column 'trust' for a weight"),
        ({"delimiter": ",,"}, "delimiter: ',,' should be a single character"),
    ],
)
def test_options_that_cannot_be_are_refused(table, options, complaint):
    with pytest.raises(InputError, match=complaint):
        open_table(table(*PEOPLE), **options)


def test_read_table_accepts_delimiters_bom_and_empty_lines(tmp_path):
    (tmp_path / "t.csv").write_bytes("\ufeffa;target\r\n1;2.5\r\n\r\n3;4.5\r\n".encode())
    source, _, _ = open_table(str(tmp_path / "t.csv"))
    assert (source.read(1).tolist(), source.name(1)) == ([3], f"{tmp_path}/t.csv line 4")


def test_table_refuses_binary_files(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"a,target\n\xff\xfe,1\n")
    with pytest.raises(InputError, match="not text in UTF-8 at byte 9"):
        open_table(str(tmp_path / "t.csv"))


@pytest.fixture
def pictures(tmp_path):
    for number in range(4):
        write(tmp_path / f"images/{number}.png", pattern(4, 4, seed=number))
        Image.fromarray((pattern(4, 4, 1, seed=number)[:, :, 0] % 2) * 255).save(
            tmp_path / f"images/{number}-mask.png"
        )
    np.save(tmp_path / "images/4.npy", np.arange(5))
    return tmp_path


def test_table_column_of_paths_is_relative_to_the_table(table, pictures):
    path = table(
        ["image", "kind"],
        *([f"images/{number}.png", "ab"[number % 2]] for number in range(4)),
        ["images/4.npy", "a"],
    )
    source, _, _ = open_table(path, targets="kind")
    assert source.read(2) == (pictures / "images/2.png").read_bytes()
    assert source.read(4).tolist() == [0, 1, 2, 3, 4]
    assert (source.classes, source.labels.tolist()) == (("a", "b"), [0, 1, 0, 1, 0])
    assert pickle.loads(pickle.dumps(source)).name(2) == f"{path} line 4: images/2.png"


def test_files_that_are_missing_or_listed_twice_are_named(table, pictures):
    with pytest.raises(
        InputError,
        match=r"line 3, column 'image': no file images/9.png \(and 1 more\); paths are rel",
    ):
        open_table(
            table(
                ["image", "target"],
                ["images/0.png", 1.5],
                ["images/9.png", 2.5],
                ["nowhere/1.png", 2],
            )
        )
    with pytest.raises(
        InputError, match=r"line 3, column 'image': ./images/0.png is also in line 2"
    ):
        open_table(table(["image", "target"], ["images/0.png", 1.5], ["./images/0.png", 2.5]))


def test_table_deleted_file_is_unreadable(table, pictures):
    source, _, _ = open_table(
        table(["image", "target"], ["images/0.png", 1.5], ["images/1.png", 2.5])
    )
    (pictures / "images/1.png").unlink()
    with pytest.raises(
        UnreadableSample, match=r"t.csv line 3: images/1.png: cannot be read: No such file"
    ):
        source.read(1)


def test_table_column_assigns_rows_to_splits(table):
    path = table(
        ["a", "target", "part"],
        [1, 1.5, "train"],
        [2, 2.5, "Val"],
        [3, 3.5, "test"],
        [4, 4.5, "train"],
    )
    parts = open_table(path, split="part")
    assert [[part.read(row).tolist() for row in range(len(part))] for part in parts] == [
        [[1], [4]],
        [[2]],
        [[3]],
    ]
    with pytest.raises(
        InputError, match="line 3, column 'part': 'second fold' is not a split of the data"
    ):
        open_table(
            table(["a", "target", "part"], [1, 1.5, "train"], [2, 2.5, "second fold"]), split="part"
        )


def test_many_labels_stand_in_columns_or_in_one_cell(table, pictures):
    source, _, _ = open_table(
        table(["a", "sun", "rain"], [1, 0, 1], [2, 1, 1]), targets=["sun", "rain"]
    )
    assert (source.target, source.targets.tolist()) == (
        TargetSpec("multilabel", 2, ("sun", "rain")),
        [[0, 1], [1, 1]],
    )
    path = table(
        ["path", "tags"],
        ["images/0.png", "sun; rain"],
        ["images/1.png", ""],
        ["images/2.png", "fog"],
    )
    source, _, _ = open_table(path, targets="tags", target=TargetWish("multilabel"))
    assert source.target == TargetSpec("multilabel", 3, ("fog", "rain", "sun"))
    assert source.targets.tolist() == [[0, 1, 1], [0, 0, 0], [1, 0, 0]]


def test_masks_stand_in_a_column_of_paths(table, pictures):
    path = table(
        ["path", "mask"],
        *([f"images/{number}.png", f"images/{number}-mask.png"] for number in range(4)),
    )
    source, _, _ = open_table(path, targets="mask", target=TargetWish("mask"))
    assert source.target == TargetSpec("mask", 2, ("0", "255"))
    assert np.array_equal(source.read_target(3), pattern(4, 4, 1, seed=3)[:, :, 0] % 2)


def test_open_table_sorts_integer_classes_by_number(table):
    path = table(["a", "target"], *([row, row * 3 % 11] for row in range(30)))
    assert open_table(path, target=TargetWish("class"))[0].classes == tuple(map(str, range(11)))


def test_groups_and_strata_are_kept_for_who_splits(table):
    path = table(
        ["a", "target", "patient", "clinic"],
        [1, 1.5, "p", "x"],
        [2, 2.5, "q", "x"],
        [3, 3.5, "p", "y"],
    )
    source, _, _ = open_table(path, group="patient", stratify="clinic")
    assert (source.groups.tolist(), source.strata.tolist()) == ([0, 1, 0], [0, 0, 1])
    assert source.read(0).tolist() == [1]


def test_table_warns_of_test_data_as_validation(table):
    rows = [[number, number % 2, "training"] for number in range(6)]
    path = table(["a", "target", "part"], *rows, [9, 0, "Testing"], [8, 1, "Testing"])
    data = open_data("table", path, 0.5, 0, {"split": "part"})
    assert [len(part) for part in data.splits().values()] == [6, 2]
    assert "test in column 'part' is used for validation" in data.remark


def test_validation_data_may_lack_a_label(table):
    train = table(["a", "target"], [1, "sun;fog"], [2, "rain"], [3, ""])
    validation = table(["a", "target"], [1, "sun"], [2, ""], name="v.csv")
    for names in ((), ("fog", "rain", "sun", "snow")):
        request = TargetWish("multilabel", names=names)
        data = open_data("table", train, validation, 0, target=request)
        columns = [data.classes.index(name) for name in ("sun", "fog", "rain")]
        assert np.asarray(data.train.targets)[:, columns].tolist() == [
            [1, 1, 0],
            [0, 0, 1],
            [0, 0, 0],
        ]
        assert np.asarray(data.validation.targets)[:, columns].tolist() == [[1, 0, 0], [0, 0, 0]]


def test_table_validation_may_lack_a_class(table):
    train = table(["a", "target"], [1, "dog"], [2, "cat"])
    validation = table(["a", "target"], [1, "dog"], name="v.csv")
    for request in (TargetWish("class", names=("dog", "cat")), TargetWish("class", 2)):
        data = open_data("table", train, validation, 0, target=request)
        assert [data.classes[label] for label in data.validation.labels] == ["dog"]


@pytest.mark.parametrize("name", ["Unnamed: 0", "", "__index_level_0__"])
def test_table_index_that_pandas_writes_is_no_feature(table, name):
    path = table([name, "a", "target"], [3, 1.5, "x"], [1, 2.5, "y"])
    source, _, _ = open_table(path)
    assert source.columns.inputs == ("a",)
    assert source.read(0).tolist() == [1.5]


def test_table_index_in_the_metadata_of_pandas_is_no_feature(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"a": [1.5, 2.5], "target": ["x", "y"], "id": [7, 8], "__index_level_1__": [1, 0]}
    pandas = b'{"index_columns": ["id", "__index_level_1__"], "columns": []}'
    frame = pyarrow.table(columns).replace_schema_metadata({b"pandas": pandas})
    parquet.write_table(frame, tmp_path / "t.parquet")
    assert open_table(str(tmp_path / "t.parquet"))[0].columns.inputs == ("a",)
    inputs, _, _ = open_table(str(tmp_path / "t.parquet"), inputs=["a", "id"])
    assert inputs.read(1).tolist() == [2.5, 8]


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ('1,2,"cat\n3,4,dog\n5,6,cat\n', 3),
        ('1,2,"cat\n3,4,dog\n5,6,"cat\n', 3),
        ('1,2,"cat\n3,4,dog\n5,6,cat"\n', 3),
        ('1,2,"cat"\n3,4,"dog\n', 4),
    ],
)
def test_table_unclosed_quote_is_refused_with_its_line(tmp_path, rows, line):
    (tmp_path / "t.csv").write_text("a,b,target\n0,0,dog\n" + rows)
    with pytest.raises(InputError, match=rf"t.csv line {line}: a quote is opened"):
        open_table(str(tmp_path / "t.csv"))


def test_table_cell_may_have_several_lines(tmp_path):
    (tmp_path / "t.csv").write_text('a,target,note\n1,x,"two\nlines"\n2,y,"a ""b"" c"\n')
    source, _, _ = open_table(str(tmp_path / "t.csv"), inputs=["a"])
    assert source.labels.tolist() == [0, 1]


def test_codes_with_leading_zeros_are_classes_of_their_own(table):
    path = table(["a", "target"], [1, "007"], [2, "7"], [3, "08"])
    for request in (None, TargetWish("class")):
        source, _, _ = open_table(path, target=request)
        assert (source.classes, source.labels.tolist()) == (("007", "08", "7"), [0, 2, 1])


def test_codes_that_are_one_number_are_no_features(table):
    path = table(["zip", "target"], ["02134", "x"], ["2134", "y"])
    with refused(InputError, "line 3, column 'zip'", "'2134'", "'02134'", "line 2"):
        open_table(path)
    months = table(["month", "target"], ["01", "x"], ["12", "y"])
    assert open_table(months)[0].read(0).tolist() == [1]


def test_numbers_with_commas_are_no_classes(table):
    for cells in (["1,5", "2,5"], ["1,234", "12,345.6"]):
        path = table(["a", "target"], *([row, cell] for row, cell in enumerate(cells)))
        with pytest.raises(InputError, match="is a number with a comma"):
            open_table(path)


def test_open_table_completes_numeric_file_names(table, tmp_path):
    path = table(["image", "age", "target"], [10, 1, "x"], [11, 2, "y"])
    with refused(InputError, "line 2, column 'image'", "10"):
        open_table(path)
    for number in (10, 11):
        write(tmp_path / f"{number}.png", pattern(2, 2, seed=number))
    source, _, _ = open_table(path)
    assert source.read(1) == (tmp_path / "11.png").read_bytes()
    counts = table(["image", "age", "target"], [0, 1, "x"], [0, 2, "y"])
    assert open_table(counts)[0].columns.inputs == ("image", "age")


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_compressed_tables_are_read(table, tmp_path, kind):
    module = {"gz": gzip, "bz2": bz2, "xz": lzma}[kind]
    with open(table(*PEOPLE), "rb") as file:
        (tmp_path / f"t.csv.{kind}").write_bytes(module.compress(file.read()))
    assert open_table(str(tmp_path / f"t.csv.{kind}"))[0].read(1).tolist() == pytest.approx(
        [40, 1.8]
    )


def test_parquet_columns_of_any_type_mean_what_they_hold(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "price": pyarrow.array([Decimal("1.50"), Decimal("2.25")]),
        "level": pyarrow.array([10, 9]).dictionary_encode(),
        "tags": pyarrow.array([["sun", "fog"], []]),
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "t.parquet")
    request = TargetWish("multilabel")
    source, _, _ = open_table(str(tmp_path / "t.parquet"), targets="tags", target=request)
    assert [source.read(row).tolist() for row in (0, 1)] == [[1.5, 10], [2.25, 9]]
    assert (source.classes, source.targets.tolist()) == (("fog", "sun"), [[1, 1], [0, 0]])
    with pytest.raises(InputError, match="column 'tags' holds lists"):
        open_table(str(tmp_path / "t.parquet"), targets="level")


def test_table_folder_of_files_is_one_table(table, tmp_path):
    (tmp_path / "parts").mkdir()
    for number in range(2):
        rows = [["a", "target"], [number, "x"], [number + 5, "y"]]
        table(*rows, name=f"parts/part-0000{number}.csv")
    source, validation, _ = open_table(str(tmp_path / "parts"))
    assert [source.read(row).tolist() for row in range(4)] == [[0], [5], [1], [6]]
    assert (source.labels.tolist(), validation) == ([0, 1, 0, 1], None)
    assert source.name(3).endswith("parts/part-00001.csv line 3")
    table(["b", "target"], [1, "x"], name="parts/part-00002.csv")
    with refused(InputError, "part-00002.csv", "column 'a'"):
        open_table(str(tmp_path / "parts"))


def test_table_files_of_a_folder_may_be_splits(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for name in ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"):
        rows = {"a": [len(name)] * 2, "target": ["x", "y"]}
        parquet.write_table(pyarrow.table(rows), tmp_path / f"{name}.parquet")
    train, validation, test = open_table(str(tmp_path))
    assert [len(train), len(validation), test] == [4, 2, None]
    (tmp_path / "train-00001-of-00002.parquet").unlink()
    with pytest.raises(InputError, match="train-00001-of-00002.parquet: file not found"):
        open_table(str(tmp_path))
