/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Everything that the XDP program and user space share: map keys, map values,
 * event records, enumerations, sizes. xdp_router/core/abi.py mirrors this file;
 * a test compares the two through the object's BTF.
 *
 * Addresses and ports are in network byte order, as on the wire. Tables of flows exist once
 * for each address family (the names that end in 6 are those of IPv6); everything else holds
 * addresses of both, IPv4 ones mapped into IPv6 (RFC 4291, 2.5.5.2). All other
 * integers are in host byte order. Times are CLOCK_MONOTONIC nanoseconds
 * (bpf_ktime_get_ns) unless the name ends in _us. Padding is explicit, and user
 * space zeroes it.
 *
 * A change of a layout or of a number bumps XR_ABI_VERSION: it is part of the pin
 * path, so that another version's maps are never misread.
 */
#ifndef XR_ABI_H
#define XR_ABI_H

#define XR_ABI_VERSION 5

#define XR_NO_BACKEND 0xffffffffU /* no such backend: an unset fallback, a refused flow */
#define XR_HASH_SLOTS 1021        /* Maglev table size of one service, a prime */
#define XR_MAX_VLAN_TAGS 2        /* 802.1ad outer + 802.1Q inner */
#define XR_NO_WSCALE 0xff         /* the SYN or SYN-ACK had no window scale option */

/* Frames up to these lengths travel in an event of the matching record size. */
#define XR_FRAME_SMALL 240
#define XR_FRAME_LARGE 1520
#define XR_RECORD_SMALL 328
#define XR_RECORD_LARGE 1608

#define XR_ASSERT_SIZE(type, size) _Static_assert(sizeof(struct type) == (size), #type " size")

/* An address of either family; IPv4 as ::ffff:a.b.c.d. */
struct ip_addr {
	__be32 word[4];
};
XR_ASSERT_SIZE(ip_addr, 16);

enum xr_mode {
	XR_MODE_RACE = 0,
	XR_MODE_SNAPSHOT = 1,
	XR_MODE_INLINE = 2,
	XR_MODE_FALLBACK = 3,    /* decided without a measurement: the configured fallback */
	XR_MODE_HASH = 4,        /* decided without a measurement: consistent hash */
	XR_MODE_REFUSED = 5,     /* nobody can take the flow: answered by RST, or ICMP */
	XR_MODE_STICKY = 6,      /* where an earlier flow of the client went */
	XR_MODE_ROUND_ROBIN = 7, /* of the control arm: whose turn it was */
};

enum xr_forwarding {
	XR_FORWARD_NAT = 0,
	XR_FORWARD_FULLNAT = 1,
	XR_FORWARD_DSR = 2,
	XR_FORWARD_IPIP = 3,
};

/* Why a flow went where it went. */
enum xr_reason {
	XR_REASON_NONE = 0,
	XR_REASON_RACE_WON = 1,        /* its own race: first valid answer */
	XR_REASON_RACE_JOINED = 2,     /* joined a race that was running or just over */
	XR_REASON_DEADLINE = 3,        /* no answer before the deadline */
	XR_REASON_ALL_REFUSED = 4,     /* every candidate refused */
	XR_REASON_NO_CANDIDATE = 5,    /* no backend is up */
	XR_REASON_RING_FULL = 6,       /* XDP: event could not be reserved */
	XR_REASON_BUDGET = 7,          /* XDP: event budget spent */
	XR_REASON_NO_HEARTBEAT = 8,    /* XDP: daemon silent */
	XR_REASON_FRAME_TOO_LONG = 9,  /* XDP: first packet longer than an event holds */
	XR_REASON_PROBE_BUDGET = 10,   /* daemon: no probe could be sent within budget */
	XR_REASON_ORPHAN = 11,         /* XDP: mid-stream segment hashed to a backend */
	XR_REASON_TUPLE_TAKEN = 12,    /* winner's reply tuple belongs to another flow: next one */
	XR_REASON_OVERLOAD = 13,       /* daemon: too many open decisions */
	XR_REASON_TABLE_FULL = 14,     /* XDP: flow_table has no room */
	XR_REASON_BACKLOG = 15,        /* XDP: too much waits in the ring to be answered in time */
	XR_REASON_AFFINITY = 16,       /* the client's address was bound to this backend */
	XR_REASON_CONNECTION_ID = 17,  /* XDP: the QUIC connection was bound to this backend */
	XR_REASON_TIE = 18,            /* answered as fast as others: weight decided */
	XR_REASON_DATAGRAMS = 19,      /* XDP: more datagrams came than are held */
	XR_REASON_STATELESS = 20,      /* XDP: hashed without an entry; the backend took it */
	XR_REASON_STICKY_LOST = 21,    /* XDP: its bound backend cannot have it: next one */
	XR_REASON_SNAPSHOT = 22,       /* by the newest table of background measurements */
	XR_REASON_SNAPSHOT_STALE = 23, /* XDP: that table is too old */
	XR_REASON_INLINE = 24, /* XDP: the better of two, by what flows themselves have shown */
	XR_REASON_CONTROL_ARM = 25, /* daemon: not by the mode, to compare it with */
};

enum xr_orphans {
	XR_ORPHANS_RESET = 0,
	XR_ORPHANS_HASH = 1,
};

#define XR_EGRESS_KERNEL 0xffffffffU /* reinject_meta: rewritten, for the kernel to route */

/*
 * data_meta of a frame that the daemon runs through the program (BPF_PROG_TEST_RUN).
 * The mark is control.reinject_mark; XDP writes where the frame has to go.
 */
struct reinject_meta {
	__u64 mark;
	__u32 egress_ifindex;
	__u32 pad;
};
XR_ASSERT_SIZE(reinject_meta, 16);

#include "abi_flows.h"
#include "abi_services.h"
#include "abi_limits.h"
#include "abi_picks.h"
#include "abi_control.h"
#include "abi_events.h"
#include "abi_counters.h"

#endif
