"""Commands to a run are files: they come whole, in order, and are answered once."""

import pytest

from fleet.runtime.external.command_queue import Command, CommandQueue


@pytest.fixture
def mailbox(tmp_path):
    return CommandQueue(tmp_path / "mailbox")


def test_there_is_nothing_in_a_mailbox_that_was_never_used(mailbox):
    assert list(mailbox.commands()) == []


def test_commands_come_in_the_order_in_which_they_were_put(mailbox):
    names = [mailbox.put({"command": "stop", "network": f"net-{number}"}) for number in range(3)]
    assert list(mailbox.commands()) == [
        Command(name, {"command": "stop", "network": f"net-{number}"})
        for number, name in enumerate(names)
    ]


def test_command_answered_and_answer_read_are_deleted(mailbox):
    name = mailbox.put({"command": "add"})
    mailbox.answer(name, {"names": ["cnn-0"]})
    assert list(mailbox.commands()) == []
    assert mailbox.take_answer(name, timeout_s=0) == {"names": ["cnn-0"]}
    assert mailbox.take_answer(name, timeout_s=0) is None


def test_a_command_can_be_withdrawn_until_it_is_answered(mailbox):
    first, second = mailbox.put({}), mailbox.put({})
    mailbox.answer(first, {})
    assert not mailbox.withdraw(first)
    assert mailbox.withdraw(second)
    assert list(mailbox.commands()) == []


@pytest.mark.parametrize("content", ["{", "[1]", "", "\x00"])
def test_what_is_no_command_can_still_be_answered(mailbox, tmp_path, content):
    mailbox.put({})
    (tmp_path / "mailbox" / "00-elsewhere-1.command.json").write_text(content)
    assert next(mailbox.commands()) == Command("00-elsewhere-1", None)


def test_a_file_that_is_being_written_is_not_seen(mailbox, tmp_path):
    name = mailbox.put({})
    (tmp_path / "mailbox" / f".{name}.command.json.7.tmp").write_text("{")
    (tmp_path / "mailbox" / f".7.tmp.{name}.command.json").write_text("{")
    assert [command.name for command in mailbox.commands()] == [name]
