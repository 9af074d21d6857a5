"""Read and write the rates file: training rates as JSON.

    {"samples_per_epoch": 30606, "gpus_per_node": 4,
     "models": [{"name": "m0", "rates": [22.5, 44.9], "epochs": 8, "params_mb": 1179.0}, ...]}

``rates[m-1]`` is samples/s on m GPUs that lie on as few nodes as possible. ``epochs`` and
``params_mb`` may be left out; ``step_s`` of a model, ``[{"batch", "seconds"}]``, and ``comm_s`` at
the top, ``[{"params_mb", "gpus", "seconds"}]``, are what the job scalability analyzer reads;
``batches`` of a model, such as ``[64, 512]``, is the range of its global batch, where that may
change. ``spread_rates`` of a model are samples/s on 1, 2, ... GPUs that lie on more nodes than
necessary, where that makes a difference. ``sharing`` at the top, such as ``[1, 1.6, 2.1]``, says
how many times as many samples/s as one 1, 2, 3 networks on one GPU train together. Unknown keys are
mistakes.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from scheduler.base import NAME, CommTime, Network, RateTable, StepTime, is_name
from scheduler.files import RecordReader, read_json


def read_rates(path: str | Path) -> RateTable:
    """Read a rates file.

    Raises:
        InputError: it cannot be read, is not JSON, or holds mistakes; all of them in one line.
    """
    return parse_rates(read_json(path), str(path))


def parse_rates(value: Any, source: str = "rates") -> RateTable:
    """Make a rate table from parsed JSON.

    Args:
        value: dicts, lists and numbers.
        source: the name of the source for messages.

    Raises:
        InputError: all mistakes in one line.
    """
    read = RecordReader()
    top = read.record(
        value, "", ("samples_per_epoch", "gpus_per_node", "models"), optional=("comm_s", "sharing")
    )
    models = tuple(
        _network(read, item, f"models[{i}]")
        for i, item in enumerate(read.items(top, "models", "models"))
    )
    if "models" in top and not models:
        read.add_mistake("models", "empty, but an ensemble needs at least one network")
    read.check_unique_names("models", models)
    comm = tuple(
        _comm_time(read, item, f"comm_s[{i}]")
        for i, item in enumerate(read.items(top, "comm_s", "comm_s"))
    )
    table = RateTable(
        read.count(top, "samples_per_epoch", "samples_per_epoch"),
        read.count(top, "gpus_per_node", "gpus_per_node"),
        models,
        comm,
        _sharing(read, top),
    )
    read.raise_mistakes(source)
    return table


def write_rates(table: RateTable) -> dict[str, Any]:
    """Return the content of the rates file of a table; ``read_rates`` reads it back.

    The bounds of groups are not part of the format: they belong to the spec.
    """
    return {
        "samples_per_epoch": table.samples_per_epoch,
        "gpus_per_node": table.gpus_per_node,
        "models": [_network_record(network) for network in table.models],
        **({"comm_s": list(map(asdict, table.comm_s))} if table.comm_s else {}),
        **({"sharing": list(table.sharing)} if len(table.sharing) > 1 else {}),
    }


def _sharing(read: RecordReader, top: dict[str, Any]) -> tuple[float, ...]:
    if "sharing" not in top:
        return (1.0,)
    speedups = tuple(
        read.positive(speedup, f"sharing[{i}]", "times as much as one network alone")
        for i, speedup in enumerate(read.items(top, "sharing", "sharing"))
    )
    if not speedups or speedups[0] != 1:
        read.add_mistake("sharing", "without the 1 of one network alone, but must begin with it")
    return speedups


def _network_record(network: Network) -> dict[str, Any]:
    record = {
        "name": network.name,
        "rates": list(network.rates),
        "epochs": network.epochs,
        "params_mb": network.params_mb,
        "step_s": list(map(asdict, network.step_s)) or None,
        "batches": network.batches and list(network.batches),
        "spread_rates": list(network.spread_rates) or None,
    }
    return {key: value for key, value in record.items() if value is not None}


def _network(read: RecordReader, value: Any, location: str) -> Network:
    record = read.record(
        value,
        location,
        required=("name", "rates"),
        optional=("epochs", "params_mb", "step_s", "batches", "spread_rates"),
    )
    name = record.get("name", location)
    if not is_name(name):
        read.add_mistake(f"{location}.name", f"{ascii(name)[:60]}, but must be {NAME}")
    steps = tuple(
        _step_time(read, item, f"{location}.step_s[{i}]")
        for i, item in enumerate(read.items(record, "step_s", f"{location}.step_s"))
    )
    return replace(
        network_of(read, str(name), record, "rates", location),
        step_s=steps,
        batches=_batches(read, record, location),
        spread_rates=_spread_rates(read, record, location),
    )


def network_of(
    read: RecordReader, name: str, record: dict[str, Any], key: str, location: str
) -> Network:
    """Return a network from a record: its rates, and optionally its epochs and size."""
    rates = _positive_rates(read, record, key, location)
    if key in record and not rates:
        read.add_mistake(f"{location}.{key}", "empty, but needs at least the rate on 1 GPU")
    epochs = read.count(record, "epochs", f"{location}.epochs") if "epochs" in record else None
    params_mb = None
    if "params_mb" in record:
        params_mb = read.positive(record["params_mb"], f"{location}.params_mb", "MB")
    return Network(name, rates, epochs=epochs, params_mb=params_mb)


def _positive_rates(
    read: RecordReader, record: dict[str, Any], key: str, location: str
) -> tuple[float, ...]:
    return tuple(
        read.positive(rate, f"{location}.{key}[{i}]", "samples/s")
        for i, rate in enumerate(read.items(record, key, f"{location}.{key}"))
    )


def _spread_rates(read: RecordReader, record: dict[str, Any], location: str) -> tuple[float, ...]:
    rates = _positive_rates(read, record, "spread_rates", location)
    of_few_nodes = record.get("rates")
    if isinstance(of_few_nodes, list) and len(rates) > len(of_few_nodes):
        read.add_mistake(
            f"{location}.spread_rates",
            f"{len(rates)} rates, but must be at most as many as `rates`: {len(of_few_nodes)}",
        )
    return rates


def _batches(read: RecordReader, record: dict[str, Any], location: str) -> tuple[int, int] | None:
    if "batches" not in record:
        return None
    bounds = [
        read.count({"batch": batch}, "batch", f"{location}.batches[{i}]")
        for i, batch in enumerate(read.items(record, "batches", f"{location}.batches"))
    ]
    if len(bounds) != 2 or bounds[0] > bounds[1]:
        read.add_mistake(
            f"{location}.batches",
            "no range, but must be the least and the largest batch, such as [64, 512]",
        )
        return None
    return bounds[0], bounds[1]


def _step_time(read: RecordReader, value: Any, location: str) -> StepTime:
    record = read.record(value, location, required=("batch", "seconds"))
    return StepTime(
        read.count(record, "batch", f"{location}.batch"),
        read.positive(record.get("seconds", 1.0), f"{location}.seconds", "seconds"),
    )


def _comm_time(read: RecordReader, value: Any, location: str) -> CommTime:
    record = read.record(value, location, required=("params_mb", "gpus", "seconds"))
    return CommTime(
        read.positive(record.get("params_mb", 1.0), f"{location}.params_mb", "MB"),
        read.count(record, "gpus", f"{location}.gpus"),
        read.not_negative(record.get("seconds", 1.0), f"{location}.seconds", "seconds"),
    )
