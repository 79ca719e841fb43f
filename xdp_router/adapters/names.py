# SPDX-License-Identifier: Apache-2.0
"""``names``: what the services and backends of a data plane are called.

XDP has no use for it. It is pinned beside the others so that flows can be listed by name
when there is no daemon to ask.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping

from .bpf_syscall import BpfMap

NAME_BYTES = 64
_SERVICE, _BACKEND = 0, 1 << 31
_BATCH = 4096


class Names:
    """The map over its fd. A key is the id, with the top bit set for a backend."""

    def __init__(self, fd: int) -> None:
        self._map = BpfMap(fd)

    def write_service(self, service: int, name: str) -> None:
        """Name a service. Raises BpfError when the table is full."""
        self._map.write(*_item(_SERVICE | service, name))

    def write_backend(self, backend: int, name: str) -> None:
        """Name a backend. Raises BpfError when the table is full."""
        self._map.write(*_item(_BACKEND | backend, name))

    def write_all(self, services: Mapping[int, str], backends: Mapping[int, str]) -> None:
        """Name many, by id. Raises BpfError when the table is full."""
        self._map.write_all(_item(_SERVICE | each, name) for each, name in services.items())
        self._map.write_all(_item(_BACKEND | each, name) for each, name in backends.items())

    def delete_backend(self, backend: int) -> None:
        """Forget a backend's name, if it has one."""
        self._map.delete((_BACKEND | backend).to_bytes(4, "big"))

    def delete_service(self, service: int) -> None:
        """Forget a service's name, if it has one."""
        self._map.delete((_SERVICE | service).to_bytes(4, "big"))

    def read(self) -> tuple[dict[int, str], dict[int, str]]:
        """Names of the services and of the backends, by id."""
        services: dict[int, str] = {}
        backends: dict[int, str] = {}
        for key, raw in itertools.chain.from_iterable(self._map.batches(_BATCH)):
            number = int.from_bytes(key, "big")
            name = raw.rstrip(b"\0").decode(errors="ignore")  # a character that did not fit
            if number & _BACKEND:
                backends[number & ~_BACKEND] = name
            else:
                services[number] = name
        return services, backends

    def keep_only(self, services: Collection[int], backends: Collection[int]) -> None:
        """Forget all other names. Raises BpfError."""
        wanted = {_SERVICE | each for each in services} | {_BACKEND | each for each in backends}
        for key, _ in itertools.chain.from_iterable(list(self._map.batches(_BATCH))):
            if int.from_bytes(key, "big") not in wanted:
                self._map.delete(key)


def _item(number: int, name: str) -> tuple[bytes, bytes]:
    return number.to_bytes(4, "big"), name.encode()[:NAME_BYTES].ljust(NAME_BYTES, b"\0")
