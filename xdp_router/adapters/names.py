# SPDX-License-Identifier: Apache-2.0
"""``names``: what the services and backends of a data plane are called.

XDP has no use for it. It is pinned beside the others so that flows can be listed by name
when there is no daemon to ask.
"""

from __future__ import annotations

from collections.abc import Collection

from .bpf_syscall import BpfMap

NAME_BYTES = 64
_SERVICE, _BACKEND = 0, 1 << 31


class Names:
    """The map over its fd. A key is the id, with the top bit set for a backend."""

    def __init__(self, fd: int) -> None:
        self._map = BpfMap(fd)

    def write_service(self, service: int, name: str) -> None:
        """Name a service. Raises BpfError when the table is full."""
        self._write(_SERVICE | service, name)

    def write_backend(self, backend: int, name: str) -> None:
        """Name a backend. Raises BpfError when the table is full."""
        self._write(_BACKEND | backend, name)

    def read(self) -> tuple[dict[int, str], dict[int, str]]:
        """Names of the services and of the backends, by id."""
        services: dict[int, str] = {}
        backends: dict[int, str] = {}
        for key in self._map.each_key():
            raw = self._map.read(key)
            if raw is None:
                continue
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
        for key in list(self._map.each_key()):
            if int.from_bytes(key, "big") not in wanted:
                self._map.delete(key)

    def _write(self, number: int, name: str) -> None:
        raw = name.encode()[:NAME_BYTES].ljust(NAME_BYTES, b"\0")
        self._map.write(number.to_bytes(4, "big"), raw)
