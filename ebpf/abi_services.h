/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Services and their backends, as the daemon writes them. Included by abi.h. */
#ifndef XR_ABI_SERVICES_H
#define XR_ABI_SERVICES_H

/* What an endpoint_key names beside its endpoint. */
enum xr_endpoint {
	XR_ENDPOINT_ONE = 0,   /* just that endpoint */
	XR_ENDPOINT_RANGE = 1, /* services: of a range of ports, of which `port` is the lowest */
	XR_ENDPOINT_PROBE = 2, /* backend_index: where only probes of the backend go */
	XR_ENDPOINT_STUN = 3,  /* the same, to a STUN server: its answers have our hash */
	XR_ENDPOINT_ECHO = 4,  /* services: ICMP echo to the address is answered; port 0 */
	/* services: this host takes the address for the gateway's sake alone; port and protocol 0 */
	XR_ENDPOINT_TAKEN_UP = 5,
};

/* services and backend_index share this key. */
struct endpoint_key {
	struct ip_addr addr;
	__be16 port; /* backend_index: 0 for a backend that takes the ports of its service */
	__u8 proto;
	__u8 kind; /* enum xr_endpoint */
};
XR_ASSERT_SIZE(endpoint_key, 20);

/* service_ranges: which ports of an address belong to services of many ports. */
struct range_key {
	struct ip_addr addr;
	__u8 proto;
	__u8 pad[3];
};
XR_ASSERT_SIZE(range_key, 20);

#define XR_RANGES 8 /* of one address and protocol */

/* Narrow ones first: the first that holds a port is the one. Host byte order, inclusive. */
struct port_ranges {
	__u16 low[XR_RANGES];
	__u16 high[XR_RANGES]; /* 0: no more */
};
XR_ASSERT_SIZE(port_ranges, 32);

/* service.flags */
#define XR_SERVICE_ECHO 0x01      /* ICMP echo to its address is answered here */
#define XR_SERVICE_QUIC 0x02      /* first datagrams are QUIC: connection IDs are looked at */
#define XR_SERVICE_SOURCES 0x04   /* source_rules has rules of it */
#define XR_SERVICE_AFFINITY 0x08  /* flows of one source address go to one backend */
#define XR_SERVICE_STATELESS 0x10 /* over budget, flows may be forwarded without an entry */
#define XR_SERVICE_GATEWAY 0x20   /* without backends: the gateway of this host takes it up */

struct service {
	__u64 deadline_ns;
	__u64 event_interval_ns; /* one CPU's budget: one first-packet event per interval */
	__u64 event_burst_ns;    /* credit that an idle bucket collects at most */
	__u64 affinity_ns;       /* an affinity lasts this long after the newest flow */
	__u64 snapshot_age_ns;   /* pick tables that are older are not used */
	__u32 id;
	__u32 first_backend; /* lowest id; an adopted service's need not be in a row */
	__u32 backend_count;
	__u32 fallback; /* backend id or XR_NO_BACKEND */
	__u32 flags;
	__u32 flow_limit; /* established flows; 0: no limit */
	__u8 mode;        /* enum xr_mode */
	__u8 forwarding;  /* enum xr_forwarding */
	__u8 orphans;
	__u8 hash_active; /* 0 or 1: hash_tables[2 * id + hash_active] */
	__u8 tunnel_bits; /* so many low bits of tunnel_source differ from flow to flow */
	__u8 control_arm; /* percent of first packets that are not decided by a mode of XDP's ... */
	__u8 control_arm_by; /* ... but by XR_MODE_ROUND_ROBIN or XR_MODE_HASH */
	__u8 pad;
	struct ip_addr tunnel_source; /* of the outer header; all zero: backend.probe_addr */
};
XR_ASSERT_SIZE(service, 88);

/* backend.flags */
#define XR_BACKEND_UP 0x01        /* may be chosen; neighbour and route are resolved */
#define XR_BACKEND_DRAINING 0x02  /* keeps its flows, gets no new ones */
#define XR_BACKEND_SHARED 0x04    /* another service has the same address and port */
#define XR_BACKEND_KERNEL 0x08    /* its packets are handed to the kernel, which forwards them */
#define XR_BACKEND_ONE_SIDED 0x10 /* its replies do not come through here */
#define XR_BACKEND_STAGE 0x20     /* its packets change their length: stage_send sends them */
#define XR_BACKEND_TUNNEL 0x40    /* of those: they get an outer header */
#define XR_BACKEND_DEAD 0x80      /* its flows are over: their clients are told */

/* What becomes of a VLAN tag: kept as it came, taken off, or XR_VLAN_TAG | VLAN id. */
#define XR_VLAN_KEEP 0
#define XR_VLAN_TAG 0x1000
#define XR_VLAN_NONE 0x2000
/* Beside XR_VLAN_TAG, towards a client: put in front of a tag that is there, and of 802.1ad. */
#define XR_VLAN_PUSH 0x4000
#define XR_VLAN_SERVICE 0x8000

struct backend {
	struct ip_addr addr;
	struct ip_addr probe_addr; /* our address that its probes are sent from */
	__be16 port;               /* 0: the packet's own */
	__u8 proto;
	__u8 flags;
	__u32 service;
	__u32 ifindex; /* egress; 0: no path */
	__u8 dmac[6];  /* next hop */
	__u8 smac[6];  /* the egress interface's */
	__u16 weight;
	__u16 vlan; /* XR_VLAN_ */
	/* What replies without an entry come from, if the service is stateless; else all zero. */
	struct ip_addr stateless_addr;
	__be16 stateless_port; /* 0: the packet's own */
	__u16 share;           /* mode inline: out of 256, how often it may be picked; 0: always */
};
XR_ASSERT_SIZE(backend, 80);

struct backend_ref {
	__u32 backend;
	__u32 service;
};
XR_ASSERT_SIZE(backend_ref, 8);

/* One Maglev lookup table: slot -> backend id; all XR_NO_BACKEND: nobody is up. */
struct hash_table {
	__u32 slots[XR_HASH_SLOTS];
	__u32 pad;
};
XR_ASSERT_SIZE(hash_table, 4088);

#endif
