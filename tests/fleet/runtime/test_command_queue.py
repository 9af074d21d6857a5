"""The queue of commands: files that are complete, in order, and answered once."""

import pytest

from fleet.runtime.external.command_queue import Command, CommandQueue


@pytest.fixture
def queue(tmp_path):
    return CommandQueue(tmp_path / "mailbox")


def test_command_queue_is_empty_without_folder(queue):
    assert list(queue.commands()) == []


def test_command_queue_keeps_order(queue):
    names = [queue.put({"command": "stop", "network": f"net-{number}"}) for number in range(3)]
    assert list(queue.commands()) == [
        Command(name, {"command": "stop", "network": f"net-{number}"})
        for number, name in enumerate(names)
    ]


def test_command_answered_and_answer_read_are_deleted(queue):
    name = queue.put({"command": "add"})
    queue.answer(name, {"names": ["cnn-0"]})
    assert list(queue.commands()) == []
    assert queue.take_answer(name, timeout_s=0) == {"names": ["cnn-0"]}
    assert queue.take_answer(name, timeout_s=0) is None


def test_command_can_be_withdrawn_until_answered(queue):
    first, second = queue.put({}), queue.put({})
    queue.answer(first, {})
    assert not queue.withdraw(first)
    assert queue.withdraw(second)
    assert list(queue.commands()) == []


@pytest.mark.parametrize("content", ["{", "[1]", "", "\x00"])
def test_command_that_is_no_json_object_can_be_answered(queue, tmp_path, content):
    queue.put({})
    (tmp_path / "mailbox" / "00-elsewhere-1.command.json").write_text(content)
    assert next(queue.commands()) == Command("00-elsewhere-1", None)


def test_command_queue_ignores_incomplete_files(queue, tmp_path):
    name = queue.put({})
    (tmp_path / "mailbox" / f".{name}.command.json.7.tmp").write_text("{")
    (tmp_path / "mailbox" / f".7.tmp.{name}.command.json").write_text("{")
    assert [command.name for command in queue.commands()] == [name]
