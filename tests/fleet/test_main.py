"""Tests of the ``fleet`` command: help, former names and unknown commands."""

import json
import re
from collections import Counter
from importlib import import_module

import pytest

from fleet.__main__ import COMMANDS, FORMER_NAMES, GROUPS, HIDDEN, main, make_parser
from fleet.arguments import with_current_names
from fleet.run import parse_arguments

# schema always prints JSON, and run what the launch prints
PRINTS_NO_TABLE = {"run", "schema", "stop", "pause", "resume"}
FORMER_OPTIONS = [
    (name, *options)
    for name, (module, _) in COMMANDS.items()
    for options in getattr(import_module(module), "FORMER_OPTIONS", {}).items()
]
RATES = json.dumps(
    {
        "samples_per_epoch": 100,
        "gpus_per_node": 2,
        "models": [{"name": "a", "rates": [10.0, 19.0], "epochs": 2}],
    }
)


@pytest.fixture
def ran(capsys):
    """Return a function that runs a command: status, standard output, standard error."""

    def run(*words):
        try:
            status = main(list(words))
        except SystemExit as end:  # argparse, after --help
            status = end.code
        return status, *capsys.readouterr()

    return run


def listed(text):
    """List the commands in a help text."""
    return re.findall(r"^  ([a-z-]+(?: [a-z-]+)?)  ", text, re.MULTILINE)


class TestHelp:
    def test_groups_contain_each_visible_command_once(self, ran):
        status, out, err = ran("--help")
        assert (status, err) == (0, "")
        assert Counter(listed(out)) == dict.fromkeys(set(COMMANDS) - set(HIDDEN), 1)
        assert [line[:-1] for line in out.splitlines() if line.endswith(":")] == list(GROUPS)

    @pytest.mark.parametrize("words", [(), ("help",), ("-h",), ("help", "help")])
    def test_no_command_prints_the_same_list(self, ran, words):
        assert ran(*words) == ran("--help")

    @pytest.mark.parametrize("name", [*COMMANDS, *FORMER_NAMES])
    def test_help_of_a_command_is_its_own(self, ran, name):
        status, out, _ = ran("help", *name.split())
        assert status == 0
        assert out == ran(*name.split(), "--help")[1]
        assert out.startswith(f"usage: fleet {FORMER_NAMES.get(name, name)} ")

    @pytest.mark.parametrize("words", ["simulate", "simulate --help", "help simulate"])
    def test_simulate_lists_its_subcommands(self, ran, words):
        status, out, err = ran(*words.split())
        assert (status, err) == (0, "")
        assert listed(out) == [name for name in COMMANDS if name.startswith("simulate ")]


class TestUnknownCommand:
    @pytest.mark.parametrize(
        ("words", "meant"),
        [
            ("chek", "check"),
            ("simulat", "simulate"),
            ("simulate ensembel", "simulate ensemble"),
            ("help simulate ensembel", "simulate ensemble"),
            ("autoscale", "simulate autoscale"),
            ("rehearsal", "dry-run"),
            ("release", "release-nodes"),
            ("train spec.yaml", "run"),
            ("optimize", "run"),
        ],
    )
    def test_similar_command_is_suggested(self, ran, words, meant):
        status, out, err = ran(*words.split())
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert err.endswith(f"; did you mean '{meant}'?\n")

    @pytest.mark.parametrize("words", ["xyzzy", "--xyzzy", "help xyzzy", "simulate xyzzy"])
    def test_help_is_named_if_nothing_is_similar(self, ran, words):
        status, out, err = ran(*words.split())
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert "unknown command" in err
        assert "fleet --help" in err


class TestFormerNames:
    @pytest.mark.parametrize("former", FORMER_NAMES)
    def test_former_command_works_with_a_notice(self, ran, former):
        current = FORMER_NAMES[former]
        status, out, err = ran(former)
        assert (status, out) == ran(*current.split())[:2]
        assert err.splitlines()[0].startswith(f"fleet: fleet {former} is now fleet {current};")

    def test_notice_leaves_standard_output_to_json(self, ran):
        status, out, err = ran("ensemble", "--networks", "3")
        assert (status, err.count("\n")) == (0, 1)
        assert out == ran("simulate", "draw", "--networks", "3")[1]
        assert len(json.loads(out)["models"]) == 3

    @pytest.mark.parametrize(("name", "former", "current"), FORMER_OPTIONS)
    def test_former_option_is_hidden(self, ran, name, former, current):
        text = ran(*name.split(), "--help")[1]
        assert re.search(rf"{current}\b", text)
        assert not re.search(rf"{former}\b(?!-)", text)

    def test_former_options_work_with_a_notice(self, ran, tmp_path):
        (tmp_path / "rates.json").write_text(RATES)
        words = ["simulate", "ensemble", str(tmp_path / "rates.json"), "--gpus=2", "--json"]
        words += ["--policy", "global"]
        former = ["--delta=5%", "--alpha", "0.5", "--per-device", "1", "--profile", "before"]
        status, out, err = ran(*words, *former)
        assert (status, err.count("\n")) == (0, 4)
        assert "--delta is now --pace-tolerance" in err
        assert json.loads(out)["policy"] == "global"

    def test_options_of_another_program_are_kept(self):
        words = ["--idle", "5min", "--", "--idle"]
        assert with_current_names("fleet", words, {"--idle": "--idle-timeout"}) == [
            "--idle-timeout",
            "5min",
            "--",
            "--idle",
        ]

    def test_former_options_of_the_main_job_work(self, capsys):
        request = parse_arguments(["a.yaml", "--beside-others", "--idle=10s"])
        assert request == parse_arguments(["a.yaml", "--share-run", "--idle-timeout=10s"])
        assert capsys.readouterr().err.count("\n") == 2


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - set(HIDDEN) - PRINTS_NO_TABLE))
def test_command_that_prints_a_table_takes_json(name):
    assert "--json" in make_parser(name)._option_string_actions
