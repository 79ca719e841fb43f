# SPDX-License-Identifier: Apache-2.0
"""What events can be called: a name that nobody gives would be waited for in vain."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

LOST = "events_lost"
"""What a reader is told in the place of those that it did not get, whatever it has asked for."""

NAMES: frozenset[str] = frozenset(
    {
        *("adopted", "aging_failed"),
        *("backend_dead", "backend_down", "backend_draining", "backend_ill", "backend_retired"),
        *("backend_undrained", "backend_up", "backend_well", "bad_record"),
        *("client_beside_backend", "control_fault"),
        *("data_plane_lost", "decision", "decision_lost", "detach_failed", "detaching"),
        *("fault", "flow_table_full", "flow_table_full_ended", "flows_ended"),
        *("flows_moved", "flows_not_ended", "flows_not_looked_at", "flows_not_moved"),
        *("former_table_kept", "generic_mode", "gro_below", "gro_hw_on"),
        *("handoff_impossible", "handoff_not_checked", "handoff_possible"),
        *("health_followed", "health_ignored"),
        *("interface_back", "interface_changed", "interface_gone", "interface_not_attached"),
        *("leaving_attached", "leftover_events", "lro_on"),
        *("local_route_added", "local_route_removed", "local_route_was_gone"),
        "lookup_not_attached",
        *("map_resized", "map_size_kept", "max_connections_out_of_reach", "mtu_too_large"),
        *("nat_ports_exhausted", "over_budget", "over_budget_ended"),
        *("probe_interval_out_of_reach", "ready", "reconfigured"),
        *("reload_cut_short", "reload_refused", "replies_led"),
        *("replies_not_found", "replies_not_led", "reserved_port_in_use"),
        *("scrape_failed", "scrape_works_again", "service_hides_connections"),
        *("service_not_taken_up", "service_without_socket"),
        *("service_hides_listeners", "service_not_answered_for", "services_not_checked"),
        *("stateless_allowed", "stateless_impossible", "stateless_possible", "stateless_waits"),
        *("stopped", "sysctl_not_set", "sysctl_restored", "sysctl_set"),
        *("takes_no_xdp_frames", "takes_xdp_frames", "task_failed", "task_not_ended"),
        *("usage_corrected", "veth_peer_checksum_offload", "veth_peer_gro_off"),
        *("veth_peer_unseen", "vlan_ignored", "vlan_offload_on"),
    }
)
"""Every name that the daemon gives: of decisions, and of the lines of its log."""

_CLOSE = 3


def reject_unknown(names: Collection[str]) -> None:
    """Raise ValueError, with those that come close first and then all, unless each is a name."""
    for name in names:
        if name in NAMES:
            continue
        if name == LOST:
            raise ValueError(f"{LOST} comes to every reader that has missed some, unasked")
        close = get_close_matches(name.lower(), sorted(NAMES), _CLOSE)
        close += sorted(each for each in NAMES if name and name.lower() in each)
        close = list(dict.fromkeys(close))
        hint = f"did you mean {' or '.join(close[:_CLOSE])}? " if close else ""
        raise ValueError(f"no event is called {name!r}: {hint}There are {', '.join(sorted(NAMES))}")
