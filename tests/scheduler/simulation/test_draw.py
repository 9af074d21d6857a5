"""Simulated ensembles: drawn, converted, redrawn, with errors."""

from dataclasses import replace

import numpy as np
import pytest

from launch.errors import InputError
from scheduler.base import Network, RateTable
from scheduler.simulation.draw import RATES, SIZES_MB, convert, generate, redraw_epochs, with_errors

TABLE = {
    "images_per_epoch": 30606,
    "gpus_per_node": 4,
    "note": "synthetic",
    "dnns": [
        {"id": 0, "base": "ResNet-50", "params_mb": 582.0, "epochs": 23, "r": [30.8, 60.7]},
        {"id": 1, "r": [105.7]},
    ],
}


def test_drawn_ensemble_lies_in_the_papers_ranges():
    drawn = generate(100, seed=1)
    single = [network.rates[0] for network in drawn.models]
    sizes = [network.params_mb for network in drawn.models]
    assert (min(single), max(single)) == pytest.approx(RATES)
    assert (min(sizes), max(sizes)) == pytest.approx(SIZES_MB)
    assert sum(network.name.startswith("ResNet") for network in drawn.models) == 50
    assert min(network.epochs for network in drawn.models) >= 6
    assert {len(network.rates) for network in drawn.models} == {8}
    assert len({network.name for network in drawn.models}) == 100


def test_drawn_networks_scale_sublinearly():
    for network in generate(20, seed=2).models:
        efficiency = np.array(network.rates) / np.arange(1, 9)
        assert (np.diff(efficiency) < 0).all()
        assert efficiency[4] / efficiency[3] < efficiency[3] / efficiency[2]


def test_equal_seeds_draw_equal_ensembles_and_others_do_not():
    assert generate(10, seed=3) == generate(10, seed=3) != generate(10, seed=4)


def test_draw_ensemble_one_network_can_be_drawn_and_none_cannot():
    assert len(generate(1).models) == 1
    with pytest.raises(InputError, match="the number of networks is 0"):
        generate(0)


def test_heavy_tails_are_heavier():
    def largest_share(heavy):
        epochs = [
            n.epochs for seed in range(5) for n in generate(100, seed, heavy_tail=heavy).models
        ]
        return max(epochs) / np.median(epochs)

    assert largest_share(heavy=True) > 2 * largest_share(heavy=False)


def test_draw_ensemble_table_is_converted():
    assert convert(TABLE) == RateTable(
        30606, 4, (Network("m0", (30.8, 60.7), epochs=23, params_mb=582.0), Network("m1", (105.7,)))
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dnns": [{"id": 0, "r": [0]}]}, r"table: dnns\[0\]\.r\[0\] is 0, but must be from"),
        ({"dnns": [{"id": 0, "r": []}]}, r"dnns\[0\]\.r is empty"),
        ({"dnns": []}, "dnns is empty"),
        ({"dnns": 2 * TABLE["dnns"][:1]}, "2 networks are named 'm0'"),
        ({"nodes": 3}, "nodes is an unknown key"),
        ({"images_per_epoch": -1}, "images_per_epoch is -1"),
    ],
)
def test_mistakes_of_a_table_are_named(change, message):
    with pytest.raises(InputError, match=message):
        convert({**TABLE, **change}, "table")


def test_redrawn_epochs_come_from_the_table():
    table = generate(50, seed=1)
    drawn = redraw_epochs(table, seed=2)
    epochs_ = {network.epochs for network in table.models}
    assert {network.epochs for network in drawn.models} <= epochs_
    assert [n.epochs for n in drawn.models] != [n.epochs for n in table.models]
    assert [n.rates for n in drawn.models] == [n.rates for n in table.models]
    assert drawn == redraw_epochs(table, seed=2)


def test_epochs_cannot_be_drawn_from_none():
    table = RateTable(100, 4, (Network("a", (1.0,)),))
    with pytest.raises(InputError, match="a has no epochs"):
        redraw_epochs(table, seed=1)
    assert redraw_epochs(table, seed=1, heavy_tail=True).models[0].epochs >= 1


def test_errors_have_the_size_that_was_asked_for():
    table = generate(100, seed=1)
    wrong = with_errors(table, 0.05, seed=1)
    errors = [
        noisy / true - 1
        for a, b in zip(wrong.models, table.models, strict=True)
        for noisy, true in zip(a.rates, b.rates, strict=True)
    ]
    assert np.std(errors) == pytest.approx(0.05, rel=0.1)
    assert with_errors(table, 0.0, seed=1) == replace(table)
