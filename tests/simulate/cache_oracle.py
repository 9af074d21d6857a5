"""Where decoded samples are kept: what ``data.cache: auto`` promises in docs/streams.md.

- In memory, if they and the samples for validation leave a quarter of the window to spare, unless
  each network would repeat slow random transforms.
- Else in a file, if decoding once pays off, and the file and the checkpoints fit into the quota.
- Augmented epochs are shared as far as the window has room for them beside these samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fleet.storage.quota import checkpoint_bytes

_SPARE = 0.75  # of a window, or of a disk
_SLOW_S = 1e-3
_READ_S = 1e-4  # a sample of a file
_BYTES_PER_S = 5e8
_ONCE = 0.25  # largest share of the work without a file that decoding once may take
_TOTAL = 0.5  # ... and decoding once and reading the file
_CLASSES = 3  # of the simulated data sets
_FILES = 3  # checkpoints of a network at a time; one more if the best is kept


class CacheOracle:
    """Compares how launches keep samples with what they know of them.

    Args:
        content: the spec.
        is_crowded: whether ranks share cores.
        object_to: is called with what is wrong.
    """

    def __init__(
        self, content: Mapping[str, Any], is_crowded: bool, object_to: Callable[[str], None]
    ) -> None:
        self._is_crowded = is_crowded
        self._object_to = object_to
        data = content["data"]
        networks = [model.get("family") for model in content["models"]]
        self._is_plain = not {"folds", "test", "augment_on"} & data.keys() and not any(
            "data" in model or "search" in model for model in content["models"]
        )
        self._are_known = all(networks)  # whether the sizes of all networks are
        self._is_ring = data.get("order") == "ring"

    def chosen(self, spec: Any, opened: Any, resources: Any, earlier: Any, cache: str) -> None:
        """A launch chooses where to keep samples."""
        if resources.is_crowded != self._is_crowded:
            self._object_to(f"ranks share cores: {self._is_crowded}, but not by {resources}")
        if spec.data.cache != "auto" or earlier or self._is_ring or not self._is_plain:
            return
        expected = _Choice(spec, opened, resources, self._are_known).cache()
        if cache != expected:
            self._object_to(f"samples are kept in {cache}, not in {expected}")

    def shares_epochs(self, spec: Any, opened: Any, used_bytes: int, epochs: int) -> None:
        """A launch lets the trainers of a node share some augmented epochs."""
        if not self._is_plain or not epochs:
            return
        choice = _Choice(spec, opened, None, self._are_known)
        if epochs > choice.epochs_beside(used_bytes):
            self._object_to(f"{epochs} augmented epochs do not fit into the window")


class _Choice:
    """The best place of samples, by the times of a probe."""

    def __init__(self, spec: Any, opened: Any, resources: Any, are_known: bool) -> None:
        self._spec = spec
        self._resources = resources
        self._are_known = are_known
        self._probe = opened.probes["train"]
        self._row = self._probe.stored.nbytes
        self.samples = len(opened.data.train)
        held_out = opened.data.validation
        self.validation = 0
        if held_out is not None:
            self.validation = len(held_out) * opened.samples["validation"].wire.nbytes
        self._all = self.samples + (0 if held_out is None else len(held_out))
        self.stored = self.samples * self._row
        self.epochs = max(network.train.stopping.max_epochs for network in spec.networks)
        self._epoch_row = opened.sample.wire.nbytes + 1

    def cache(self) -> str:
        """Return the value of ``data.cache`` that suits best."""
        if self._fits_into_memory() and not self._is_repeated():
            return "memory"
        return "file" if self._fits_into_file() and self._pays_off() else "none"

    def epochs_beside(self, used_bytes: int) -> int:
        """Return how many augmented epochs fit into the window beside other samples."""
        room = self._spec.data.shared_memory - used_bytes
        return min(self.epochs, max(0, room) // (self.samples * self._epoch_row))

    def _fits_into_memory(self) -> bool:
        copies = 1 if self._resources.preprocessors else self._resources.trainers
        needed = copies * self.stored + self.validation
        return needed <= _SPARE * min(self._spec.data.shared_memory, self._resources.shared_free)

    def _is_repeated(self) -> bool:
        """Return True if networks would repeat slow work that preprocessors can share."""
        sharers = self._resources.preprocessors
        if sharers and self._resources.is_crowded:
            shared = self.epochs_beside(self.stored + self.validation)
            trainers = self._resources.trainers - 1
            sharers = max(sharers, 1 + trainers * (1 - shared / self.epochs))
        slow_s = self._probe.varying_s
        return slow_s >= _SLOW_S and (sharers - 1) * slow_s > self._probe.fixed_s

    def _fits_into_file(self) -> bool:
        spec = self._spec
        quota = spec.checkpoint.quota
        if self._probe.is_raw or (quota is not None and not self._are_known):
            return False
        files = _FILES + (spec.checkpoint.keep != "last")
        checkpoints = 0
        for network in spec.networks if self._are_known else ():
            values = _CLASSES * self._epoch_row  # weights of pixels, and biases
            checkpoints += files * checkpoint_bytes(values, network, spec) + 4 * values
        needed = self._all * self._row + checkpoints
        fits = needed <= _SPARE * self._resources.disk_free
        return fits and (quota is None or needed <= quota)

    def _pays_off(self) -> bool:
        ranks = self._resources.preprocessors or self._resources.trainers
        probe = self._probe
        samples = self.epochs * self.samples / ranks
        always_s = samples * (probe.fixed_s + probe.varying_s)
        once_s = self._all * probe.fixed_s
        read_s = _READ_S + self._row / _BYTES_PER_S
        total_s = once_s + samples * (read_s + probe.varying_s)
        return once_s <= _ONCE * always_s and total_s <= _TOTAL * always_s
