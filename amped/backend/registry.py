"""Operations, and what provides them on each device: a file added to a device's folder `ops` is enough.

A *provider* is one way to compute an operation. A module of the device registers it:

    @SOLVE.provider("cuda")
    def providers(device: CudaDevice) -> Sequence[Solver]:
        return [FusedSolver(device), ProductSolver(device)]

Modules are imported when a device's providers are first looked up, so that neither CuPy nor compiled code is loaded
for another device. Modules of operation ``solve`` are ``solve.py`` and all ``solve_*.py``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Generic, NamedTuple, TypeVar

from .device import Device

D = TypeVar("D")
P = TypeVar("P")


class Op(Generic[P]):
    """An operation, whose providers keep the protocol `P`.

    Parameters
    ----------
    name : str
        The name of its modules in each device's folder.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._sources: defaultdict[str, list[_Source[P]]] = defaultdict(list)
        self._reused: dict[str, str] = {}
        self._loaded = set[str]()

    def provider(
        self, device: str, priority: int = 0
    ) -> Callable[[Callable[[D], Sequence[P]]], Callable[[D], Sequence[P]]]:
        """Register a function that returns providers for a device, those to prefer first.

        Parameters
        ----------
        device : str
            The name of the device, which is that of its folder.
        priority : int
            Functions of higher priority come first; of equal priority, in the order of their modules' names.
        """

        def register(make: Callable[[D], Sequence[P]]) -> Callable[[D], Sequence[P]]:
            sources = self._sources[device]
            sources.append(_Source(priority, make))
            sources.sort(key=lambda source: -source.priority)
            return make

        return register

    def reuse(self, device: str, of: str) -> None:
        """Let a device use the providers of another one, after those that it registers itself."""
        self._reused[device] = of

    def providers(self, device: Device) -> list[P]:
        """Return what a device can use, those to prefer first; nothing if it cannot compute this operation."""
        return [each for source in self._of(device.name) for each in source.make(device)]

    def first(self, device: Device, suits: Callable[[P], bool] = lambda provider: True) -> P | None:
        """Return the first provider that suits, or None; where one declines, the next is tried."""
        return next((provider for provider in self.providers(device) if suits(provider)), None)

    def require(self, device: Device, suits: Callable[[P], bool] = lambda provider: True) -> P:
        """Return the first provider that suits, of an operation that every device has in all cases."""
        found = self.first(device, suits)
        if found is None:
            raise LookupError(f"no provider of '{self._name}' suits on device '{device.name}'")
        return found

    def _of(self, device: str) -> list[_Source[P]]:
        if device not in self._loaded:
            self._load(device)
            self._loaded.add(device)
        reused = self._reused.get(device)
        return self._sources[device] + (self._of(reused) if reused else [])

    def _load(self, device: str) -> None:
        """Import the modules of the operation in a device's folder."""
        package = import_module(f"{__package__}.{device}.ops")
        for module in iter_modules(package.__path__):
            if module.name == self._name or module.name.startswith(f"{self._name}_"):
                import_module(f"{package.__name__}.{module.name}")


class _Source(NamedTuple, Generic[P]):
    """A function that returns providers for a device."""

    priority: int
    make: Callable[[Any], Sequence[P]]
