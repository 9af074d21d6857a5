"""Call a function of the user that makes the inputs of a module of a batch (``data.collate``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from fleet.engines.custom import load_custom
from fleet.errors import FleetError, SettingError
from fleet.spec.model import one_line
from preprocess.sample import InputSpec, RecordSpec, mask_of


class Collation:
    """The function that ``data.collate`` names.

    It takes a list of the samples of a batch, each a mapping of its inputs to tensors without
    padding, on the device of the network. It returns what the module takes: a mapping of
    keywords, a tuple of arguments, or one argument.

    Args:
        array: the inputs of a sample as they travel.

    Raises:
        SettingError: the function does not exist.
    """

    def __init__(self, array: RecordSpec) -> None:
        self._path = array.collate
        self._padded = array.padded
        self._masks = {mask_of(name) for name in array.padded}
        self._function: Callable[..., Any] = load_custom(self._path, "collate", "collate")
        if not callable(self._function):
            raise SettingError(
                f"{self._path} is a {type(self._function).__name__}; it should be a function of a "
                "list of samples",
                "data",
                "collate",
            )

    @classmethod
    def of(cls, array: InputSpec) -> Collation | None:
        """Return the function of samples; None if they have none."""
        if isinstance(array, RecordSpec) and array.collate:
            return cls(array)
        return None

    def __call__(self, samples: Mapping[str, Tensor]) -> Any:
        """Return the inputs of the module.

        Args:
            samples: (n, ...) by name, with the masks of padded inputs.

        Raises:
            SettingError: the function raises.
        """
        named = {name: tensor for name, tensor in samples.items() if name not in self._masks}
        lengths = {name: samples[mask_of(name)].sum(1).long().tolist() for name in self._padded}
        rows = len(next(iter(samples.values())))
        records = [
            {
                name: tensor[row, : lengths[name][row]] if name in lengths else tensor[row]
                for name, tensor in named.items()
            }
            for row in range(rows)
        ]
        try:
            return self._function(records)
        except FleetError:
            raise
        except Exception as error:  # the user's function may raise anything
            raise SettingError(
                f"{self._path} failed for {rows} samples: {one_line(error)}", "data", "collate"
            ) from error
