"""Registry of operations and their providers on each device: to add one, add a file to the device's folder `ops`.

A *provider* is one way to compute an operation. A module of the device registers it:

    @SOLVE.provider("cuda")
    def providers(device: CudaDevice) -> Sequence[Solver]:
        return [FusedSolver(device), ProductSolver(device)]

Modules are imported on the first request for a device's providers, so that neither CuPy nor compiled code is loaded for
other devices. The modules of operation ``solve`` are ``solve.py`` and all ``solve_*.py``.
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
    """An operation whose providers implement the protocol `P`.

    Parameters
    ----------
    name : str
        Name of the modules that provide it, in each device's folder.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._sources: defaultdict[str, list[_Source[P]]] = defaultdict(list)
        self._reused: dict[str, str] = {}
        self._loaded = set[str]()

    def provider(
        self, device: str, priority: int = 0
    ) -> Callable[[Callable[[D], Sequence[P]]], Callable[[D], Sequence[P]]]:
        """Register a function that returns providers for a device, in order of preference.

        Parameters
        ----------
        device : str
            Name of the device's folder.
        priority : int
            Functions of higher priority come first; those of equal priority in the order of their modules' names.
        """

        def register(make: Callable[[D], Sequence[P]]) -> Callable[[D], Sequence[P]]:
            sources = self._sources[device]
            sources.append(_Source(priority, make))
            sources.sort(key=lambda source: -source.priority)
            return make

        return register

    def reuse(self, device: str, of: str) -> None:
        """Let a device use the providers of another one, after those in its own folder."""
        self._reused[device] = of

    def providers(self, device: Device) -> list[P]:
        """Return the providers of a device in order of preference; an empty list if it cannot compute the operation."""
        return [each for source in self._sources_of(device.folder) for each in source.make(device)]

    def first(self, device: Device, suits: Callable[[P], bool] = lambda provider: True) -> P | None:
        """Return the first provider for which `suits` is true, or None."""
        return next((provider for provider in self.providers(device) if suits(provider)), None)

    def require(self, device: Device, suits: Callable[[P], bool] = lambda provider: True) -> P:
        """Return the first provider for which `suits` is true, of an operation that every device must provide."""
        provider = self.first(device, suits)
        if provider is None:
            raise LookupError(f"no suitable provider of '{self._name}' on device '{device.name}'")
        return provider

    def _sources_of(self, device: str) -> list[_Source[P]]:
        if device not in self._loaded:
            self._load(device)
            self._loaded.add(device)
        reused = self._reused.get(device)
        return self._sources[device] + (self._sources_of(reused) if reused else [])

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
