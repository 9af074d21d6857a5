"""All that the ranks of one node share: which samples are in it, by the way in which they come."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.stream.sample_set import SampleSet
from fleet.stream.segment import Segment
from fleet.stream.window import Window


@dataclass(frozen=True)
class NodeMemory:
    """What the ranks of a node share.

    Attributes:
        window: of training samples that come and go, in an order; or
        kept: all training samples, up to the first random transform, in the order of epoch 0.
        validation: all validation samples.
        tenants: which trainers train a network (:class:`fleet.stream.tenants.Tenants`); None where no GPU is shared.
    """

    window: Window | None = None
    kept: SampleSet | None = None
    validation: SampleSet | None = None
    tenants: Segment | None = None

    def unlink(self) -> None:
        """Take the names away, once all ranks of the node have mapped it; the memory lives on."""
        for shared in (self.window, self.kept, self.validation):
            if shared is not None:
                shared.segment.unlink()
        if self.tenants is not None:
            self.tenants.unlink()
