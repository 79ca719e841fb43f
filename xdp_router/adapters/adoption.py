# SPDX-License-Identifier: Apache-2.0
"""Finds the data plane that a daemon has left, and says whether it can be taken over.

What is not exactly as this version makes it is refused, by path: nothing is ever guessed. Two
things may differ: how many entries the tables have, and the program.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from xdp_router.core import abi
from xdp_router.core.config import RouterConfig
from xdp_router.core.identity import Known, renumber, vanished
from xdp_router.core.model import Backend, Endpoint

from . import bpf_syscall as bpf
from .bpf_maps import Maps
from .dataplane import DataPlane, InstanceExists, daemon_alive, daemon_stays, occupied
from .map_specs import MAP_SPECS, MapSpec, Sizes
from .names import Names
from .pins import (
    LINK_PREFIX,
    PROG_PREFIX,
    InstanceRef,
    PinError,
    instance_of,
    other_version,
    pinned_links,
)
from .xdp_link import XdpLink, open_link

_FIXED = ("control", "counters", "notes")
"""Maps whose number of entries is no choice of the operator's."""
_BATCH = 4096


def find_former(root: Path, interfaces: Sequence[str]) -> InstanceRef | None:
    """The data plane of a daemon that is gone, for exactly these interfaces; None: they are free.

    Waits for a second at most, to know whether the daemon is gone. Raises InstanceExists when
    it lives, when the interfaces are others, or when the data plane is another version's.
    """
    other = other_version(root, interfaces)
    if other is not None:
        raise InstanceExists(
            f"{other}: a data plane of another version (ABI {other.parent.name[1:]}, this one has "
            f"{abi.ABI_VERSION}): it cannot be taken over: stop its daemon, or detach it, by the "
            "xdp-routerd of that version"
        )
    for interface in interfaces:
        found = instance_of(root, interface)
        if found is None:
            continue
        if set(found.interfaces) != set(interfaces):
            raise occupied(interface, found, alive=daemon_alive(found.path))
        if daemon_stays(found.path):
            raise occupied(interface, found, alive=True)
        return found
    return None


@dataclass(slots=True)
class Former:
    """An opened data plane whose daemon is gone. ``links``: its live attachments by interface."""

    plane: DataPlane
    links: dict[str, XdpLink] = field(default_factory=dict)

    def close(self) -> None:
        """Close what is still ours to close."""
        self.plane.close()
        for link in self.links.values():
            link.close()

    def known(self) -> Known:
        """Ids of its services and backends. Raises BpfError."""
        maps, fds = Maps(self.plane.maps), self.plane.maps
        sizes = {name: bpf.map_info(fd).max_entries for name, fd in fds.items()}
        backends = {
            number: (value.service, _endpoint(value)) for number, value in maps.backends.items()
        }
        services = {endpoint: value.id for endpoint, value in maps.services.items()}
        room = min(
            sizes["services"], sizes["hash_tables"] // 2, sizes["tokens"] - abi.TOKENS_SERVICE
        )
        backend_room = min(sizes["backends"], sizes["backend_index"], sizes["names"] - room)
        return Known(services, backends, room, backend_room)

    def renumber(self, config: RouterConfig) -> tuple[RouterConfig, tuple[Backend, ...]]:
        """``config`` with ids that its flows understand, and backends that only flows have.

        Raises DoesNotFit or BpfError.
        """
        known = self.known()
        retired = self._in_use(vanished(config, known))
        _, names = Names(self.plane.maps["names"]).read()
        maps = Maps(self.plane.maps)
        left = []
        for number in sorted(retired):
            value = maps.backends.read(number)
            assert value is not None
            name = names.get(number, str(number))
            left.append(Backend(number, name, _endpoint(value), value.service, value.weight))
        return renumber(config, known, retired), tuple(left)

    def resized(self, wanted: Sizes) -> dict[str, tuple[int, int]]:
        """Flow tables of another size than wanted: (entries, wanted entries)."""
        found = {}
        for spec in MAP_SPECS:
            if spec.name in ("flow_table", "pending_flows", "first_packet_events"):
                entries = bpf.map_info(self.plane.maps[spec.name]).max_entries
                if entries != spec.entries(wanted):
                    found[spec.name] = (entries, spec.entries(wanted))
        return found

    def _in_use(self, backends: Collection[int]) -> frozenset[int]:
        if not backends:
            return frozenset()
        maps, used = Maps(self.plane.maps), set()
        for batch in maps.flow_table.batches(_BATCH):
            used |= abi.flow_backends(batch.values)
        for batch in maps.pending_flows.batches(_BATCH):
            used |= abi.pending_backends(batch.values)
        return frozenset(used.intersection(backends))


def _endpoint(value: abi.BackendValue) -> Endpoint:
    return Endpoint(value.addr, value.port, value.proto)


def open_former(found: InstanceRef) -> Former:
    """Open what was found. Raises PinError, naming the pin and the mend, unless all is ours."""
    mend = f"{found.detach}, which ends its connections"
    _check_kinds(found.path, mend)
    with contextlib.ExitStack() as undo:
        former = Former(DataPlane.open(found.path))
        undo.callback(former.close)
        _check_maps(found.path, former.plane, mend)
        for name, pin in pinned_links(found.path).items():
            if name not in found.interfaces:
                raise PinError(f"{pin}: no interface of this data plane is called so: {mend}")
            link = open_link(pin, name)
            if link.ifindex:
                former.links[name] = link
            else:
                link.close()  # its interface was deleted, or somebody has detached it
        control = Maps(former.plane.maps).control.read()
        if control.abi_version != abi.ABI_VERSION and (former.links or control.abi_version):
            raise PinError(
                f"{found.path / 'control'}: says ABI {control.abi_version}, expected "
                f"{abi.ABI_VERSION}: {mend}"
            )
        undo.pop_all()
        return former


def _check_kinds(path: Path, mend: str) -> None:
    """Each pin is what its name says; else its description would be misread."""
    known = {spec.name for spec in MAP_SPECS}
    for name in sorted(os.listdir(path)):
        pin = path / name
        if name.startswith(PROG_PREFIX):
            kind = "bpf-prog"
        elif name.startswith(LINK_PREFIX):
            kind = "bpf-link"
        elif name in known:
            kind = "bpf-map"
        else:
            raise PinError(f"{pin}: not a pin of this version: remove it, or {mend}")
        try:
            fd = bpf.open_pinned(str(pin))
        except OSError as cause:
            raise PinError(f"{pin}: not a pin that can be opened ({cause}): {mend}") from cause
        try:
            found = os.readlink(f"/proc/self/fd/{fd}").removeprefix("anon_inode:").strip("[]")
            found = found.replace("_", "-")  # links of both spellings are about
        finally:
            os.close(fd)
        if found != kind:
            raise PinError(f"{pin}: is a {found}, expected a {kind}: {mend}")


def _check_maps(path: Path, plane: DataPlane, mend: str) -> None:
    missing = [s.name for s in MAP_SPECS if not s.private and s.name not in plane.maps]
    if missing:
        raise PinError(
            f"{path}: pins are missing ({', '.join(missing)}), as after a stop that was cut "
            f"short: {mend}"
        )
    for spec in MAP_SPECS:
        if spec.private:
            continue
        info = bpf.map_info(plane.maps[spec.name])
        wanted = _layout(spec)
        fixed = spec.name in _FIXED
        got = (info.type, info.key_size, info.value_size, info.max_entries if fixed else 0)
        if got != wanted:
            raise PinError(
                f"{path / spec.name}: a map of another layout (type, key and value bytes, fixed "
                f"entries: {got}, expected {wanted}): {mend}"
            )


def _layout(spec: MapSpec) -> tuple[int, int, int, int]:
    entries = spec.entries(Sizes()) if spec.name in _FIXED else 0
    return int(spec.type), spec.key_size, spec.value_size or 0, entries
