"""Which networks ranks may train as one program (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from fleet.comm import messages as m
from fleet.control.effects import Outbox
from fleet.control.networks import Networks
from fleet.domain.events import NetworkWarned
from fleet.spec import NetworkSpec
from fleet.spec.fusing import fuse_key, why_alone


class Fusing:
    """The kinds of networks that ranks of a launch train as one.

    Args:
        is_used: whether ranks train several networks as one.
        networks: the networks of the run.
        outbox: collects effects.
    """

    def __init__(self, is_used: bool, networks: Networks, outbox: Outbox) -> None:
        self._is_used = is_used
        self._networks = networks
        self._outbox = outbox
        self._keys: dict[str, str] = {}
        self._unfusible: set[str] = set()
        self._reasons: set[str] = set()  # that were reported

    def record(self, refused: m.NotFused) -> None:
        """Record that the module of a network cannot be fused."""
        key = fuse_key(self._networks.specs[refused.network])
        self._unfusible.add(key)
        self._keys.clear()
        self._report(refused.network, refused.reason)

    def keys(self) -> Mapping[str, str]:
        """Return network -> what is equal for networks that can be fused; empty without fusing."""
        if self._is_used and len(self._keys) < len(self._networks.specs):
            self._keys = {
                name: self._keys[name] if name in self._keys else self._key(network)
                for name, network in self._networks.specs.items()
            }
        return self._keys

    def _key(self, network: NetworkSpec) -> str:
        reason = why_alone(network)
        if reason:
            self._report(network.name, reason)
            return ""
        key = fuse_key(network)
        return "" if key in self._unfusible else key

    def _report(self, name: str, reason: str) -> None:
        """Report a reason once."""
        if reason not in self._reasons:
            self._reasons.add(reason)
            warning = f"it is not fused with others (resources.fuse): {reason}"
            self._outbox.log(NetworkWarned(name, warning))
