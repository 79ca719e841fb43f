/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Interfaces, and what holds for all of the router. Included by abi.h. */
#ifndef XR_ABI_CONTROL_H
#define XR_ABI_CONTROL_H

/* interface.flags */
#define XR_IF_BOUNCE_REDIRECT 0x01  /* answer by bpf_redirect(ingress), not XDP_TX */
#define XR_IF_VIRTUAL_MAC 0x02      /* virtual_mac counts as ours */
#define XR_IF_HANDOFF_FORWARD4 0x04 /* the kernel forwards what comes in here for a backend */
#define XR_IF_HANDOFF_REPLY4 0x08   /* and what comes in here with a service's address */
#define XR_IF_NO_XMIT 0x10          /* takes no XDP frames: nothing can be redirected to it */
#define XR_IF_HANDOFF_FORWARD6 0x20 /* as FORWARD4 and REPLY4, of IPv6: the kernel forwards the */
#define XR_IF_HANDOFF_REPLY6 0x40   /* families by settings of their own */

struct interface {
	__u8 mac[6];
	__u8 virtual_mac[6];
	__u32 flags;
	__be32 addr; /* source of ICMP errors that are sent there; 0: it has none */
	__u32 mtu;
	struct ip_addr addr6; /* the same for IPv6 */
};
XR_ASSERT_SIZE(interface, 40);

/* control.flags */
#define XR_CONTROL_NO_XMIT 0x01 /* some interface has XR_IF_NO_XMIT: look before replying */
#define XR_CONTROL_RANGES 0x02  /* some service has many ports: look into service_ranges */
#define XR_CONTROL_ECHO 0x04    /* some service has XR_SERVICE_ECHO */
#define XR_CONTROL_HOLD 0x08    /* flows stay in the table of before: programs are being changed */

/* control[0] */
struct control {
	__u64 heartbeat_ns;       /* daemon's last sign of life */
	__u64 heartbeat_stale_ns; /* older than this: the daemon is gone */
	__u64 resumed_ns;         /* end of the last gap in the heartbeat, and so in last_seen */
	__u64 reinject_mark;      /* secret; see struct reinject_meta */
	__u64 pending_idle_ns;    /* another ISN on a pending flow idle this long: new flow */
	__u64 flow_idle_ns;       /* the same for an established flow */
	__u64 udp_idle_ns;        /* the same for one of UDP */
	__u64 orphan_window_ns;   /* stateless_until is set this far ahead */
	__u64 event_interval_ns;  /* one CPU's budget over all services */
	__u64 event_burst_ns;
	__u64 prefix_interval_ns; /* one source prefix's budget of events */
	__u64 prefix_burst_ns;
	__u64 icmp_interval_ns; /* one CPU's budget of ICMP errors that XDP sends */
	__u64 icmp_burst_ns;
	__u32 probe_key[2]; /* HalfSipHash key of probe sequence numbers */
	__u32 abi_version;
	__u32 generation;
	__u32 min_mtu;   /* smallest of the attached interfaces; longer packets are looked at */
	__u32 ring_deep; /* bytes that wait in the ring from which on XDP decides by itself */
	__u16 probe_port_min; /* host byte order, inclusive */
	__u16 probe_port_max;
	__u16 nat_port_min; /* source ports of fullnat, likewise */
	__u16 nat_port_max;
	__u32 flags;
	__u32 one_sided_interval_ns; /* one prefix's budget of one-sided flows; 0: no limit */
};
XR_ASSERT_SIZE(control, 152);

#endif
