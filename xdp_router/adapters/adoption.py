# SPDX-License-Identifier: Apache-2.0
"""Finds the data plane that a daemon has left, and says whether it can be taken over.

What is not exactly as this version makes it is refused, by path: nothing is ever guessed. Two
things may differ: how many entries the tables have, and the program.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from xdp_router.core import abi
from xdp_router.core.config import RouterConfig
from xdp_router.core.errors import XdpRouterError
from xdp_router.core.identity import Known, renumber, vanished
from xdp_router.core.model import Backend, Forwarding

from . import bpf_syscall as bpf
from . import resize
from .bpf_maps import Maps
from .dataplane import DataPlane, InstanceExists, daemon_alive, daemon_stays, occupied
from .map_specs import MAP_SPECS, PREVIOUS, MapSpec, Sizes
from .names import Names
from .pins import (
    LINK_PREFIX,
    LOOKUP_PIN,
    PROG_PREFIX,
    InstanceRef,
    PinError,
    instance_of,
    other_version,
    pinned_links,
)
from .xdp_link import XdpLink, open_link

_BATCH = 4096
_SPECS = {spec.name: spec for spec in MAP_SPECS}
TWO_A_FLOW = ("flow_table", "flow_table6")
"""Tables whose size is told in flows, as ``max_flows`` has it."""


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
    has_ipv6_flows: bool = False
    """Whether a backend that only flows have has some of IPv6; set by :meth:`renumber`."""

    def close(self) -> None:
        """Close what is still ours to close."""
        self.plane.close()
        for link in self.links.values():
            link.close()

    def known(self, sizes: Sizes | None = None) -> Known:
        """Ids of its services and backends, and the room that maps of ``sizes`` have (None: those
        that are there). Raises BpfError.
        """
        maps, fds = Maps(self.plane.maps), self.plane.maps
        entries = _entries_of(fds)
        if sizes is not None:
            entries = resize.entries_after(fds, sizes)
        backends = {
            number: (value.service, value.endpoint) for number, value in maps.backends.items()
        }
        methods = {number: _method(value) for number, value in maps.backends.items()}
        services = {at: value.id for at, value in maps.services.running().items()}
        return Known(services, backends, *_rooms(entries), methods, entries["services"])

    def renumber(
        self, config: RouterConfig, sizes: Callable[[int], Sizes] | None = None
    ) -> tuple[RouterConfig, tuple[Backend, ...]]:
        """``config`` with ids that its flows understand, and backends that only flows have.

        ``sizes``: of the maps that there will be, by how many such backends there are. Raises
        DoesNotFit or BpfError.
        """
        known = self.known()
        retired = self._in_use(vanished(config, known))
        if sizes is not None:
            known = self.known(sizes(len(retired)))
        _, names = Names(self.plane.maps["names"]).read()
        maps = Maps(self.plane.maps)
        left = []
        for number in sorted(retired):
            value = maps.backends.read(number)
            assert value is not None
            name = names.get(number, str(number))
            left.append(
                Backend(
                    number,
                    name,
                    value.endpoint,
                    value.service,
                    value.weight,
                    forwarding=_method(value),
                )
            )
        return renumber(config, known, retired), tuple(left)

    def _in_use(self, backends: Collection[int]) -> frozenset[int]:
        if not backends:
            return frozenset()
        maps, in_use = Maps(self.plane.maps), set()
        for tables in maps.by_family.values():
            used: set[int] = set()
            for batch in tables.flows.batches(_BATCH):
                used |= abi.flow_backends(batch.values, tables.family)
            for table in tables.both:
                for batch in table.batches(_BATCH):
                    used |= abi.pending_backends(batch.values, tables.family)
            found = used.intersection(backends)
            in_use |= found
            # A tunnel's backend may be of IPv4 all the same.
            self.has_ipv6_flows |= bool(found) and tables.family == 6
        return frozenset(in_use)


def rooms_of(fds: Mapping[str, int]) -> tuple[int, int]:
    """How many services, and how many backends, a data plane's maps have room for."""
    return _rooms(_entries_of(fds))


def _rooms(entries: Mapping[str, int]) -> tuple[int, int]:
    services = min(
        entries["services"],
        entries["hash_tables"] // 2,
        entries["tokens"] - abi.TOKENS_SERVICE,
    )
    return services, min(
        entries["backends"],
        entries["backend_index"] // 2,
        entries["names"] - services,
    )


def _entries_of(fds: Mapping[str, int]) -> dict[str, int]:
    return {name: bpf.map_info(fd).max_entries for name, fd in fds.items()}


def _method(value: abi.BackendValue) -> Forwarding:
    """How packets of its flows reach a backend; of those that are rewritten the entries tell."""
    if value.flags & abi.BACKEND_TUNNEL:
        return Forwarding.IPIP
    return Forwarding.DSR if value.flags & abi.BACKEND_ONE_SIDED else Forwarding.NAT


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
    known = {spec.name for spec in MAP_SPECS} | {before for _, before in PREVIOUS.values()}
    for name in sorted(os.listdir(path)):
        pin = path / name
        if name.startswith(PROG_PREFIX):
            kind = "bpf-prog"
        elif name.startswith(LINK_PREFIX) or name == LOOKUP_PIN:
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
    specs = {spec.name: spec for spec in MAP_SPECS if not spec.private}
    names = [(name, name) for name in specs]
    names += [(before, table) for table, (_, before) in PREVIOUS.items() if before in plane.maps]
    for name, like in names:
        info = bpf.map_info(plane.maps[name])
        wanted = _layout(specs[like])
        fixed = name in resize.FIXED
        got = (info.type, info.key_size, info.value_size, info.max_entries if fixed else 0)
        if got != wanted:
            raise PinError(
                f"{path / name}: a map of another layout (type, key and value bytes, fixed "
                f"entries: {got}, expected {wanted}): {mend}"
            )


def _layout(spec: MapSpec) -> tuple[int, int, int, int]:
    entries = spec.entries(Sizes()) if spec.name in resize.FIXED else 0
    return int(spec.type), spec.key_size, spec.value_size or 0, entries


def require_room(former: Former, sizes: Sizes) -> None:
    """Raise XdpRouterError if a table of flows is to be smaller than what is in it.

    Changes nothing. New flows may still come meanwhile: they wait in the table of before.
    """
    maps = former.plane.maps
    for name in TWO_A_FLOW:
        entries, wanted = bpf.map_info(maps[name]).max_entries, _SPECS[name].entries(sizes)
        if wanted == 1 or wanted >= entries:
            continue
        there = resize.count_entries(maps, name)
        if there > wanted:
            flows = (there + 1) // 2
            raise XdpRouterError(
                f"{name}: {flows} connections are established, more than max_flows = "
                f"{wanted // 2} has room for: attach with --max-flows {flows} or more, or with "
                f"{entries // 2} as before, or wait until there are fewer"
            )
