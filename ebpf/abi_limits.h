/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What limits, and what remembers: budgets, pressure, fragments, sources. Included by abi.h. */
#ifndef XR_ABI_LIMITS_H
#define XR_ABI_LIMITS_H

/* tokens[]: per-CPU budgets. */
#define XR_TOKENS_EVENTS 0  /* first-packet events of all services */
#define XR_TOKENS_ICMP 1    /* ICMP errors that XDP sends */
#define XR_TOKENS_ECHO 2    /* answers to pings: those are not to use up the errors' */
#define XR_TOKENS_SERVICE 3 /* + service id: events of that service */

struct token_bucket {
	__u64 credit_ns;
	__u64 last_ns;
	__u64 asked; /* how often a token was wanted here, granted or not; of a service: packets
		      * that went to its backends without an entry */
};
XR_ASSERT_SIZE(token_bucket, 24);

/* prefix_tokens: the event budget of one source prefix, shared by all CPUs. */
struct prefix_key {
	struct ip_addr addr; /* /24 of IPv4, /56 of IPv6 */
};
XR_ASSERT_SIZE(prefix_key, 16);

/*
 * event_shares[cpu]: the daemon re-sets each second what part of the event budgets a CPU
 * has, by where SYNs arrive. An interval is multiplied by scale / XR_SHARE_ONE.
 */
#define XR_SHARE_ONE 256
struct event_share {
	__u32 scale;
};
XR_ASSERT_SIZE(event_share, 4);

/*
 * What XDP noticed about the tables: [0] of all services, [1 + service id] of one. XDP alone
 * writes it while packets pass, so that no write of the daemon can undo one of XDP's.
 */
struct pressure {
	__u64 table_full_ns; /* [0]: a proven flow last found no room in flow_table */
	/* [1 + id]: mid-stream segments are hashed until then; [0]: flood_flows is looked into */
	__u64 stateless_until_ns;
	__u32 why; /* [1 + id]: enum xr_counter of the budget that was spent; 0: none yet */
	__u32 fragment_ids;   /* [0]: datagrams in fragments that got an id of ours */
	__u64 table6_full_ns; /* [0]: the same of flow_table6 */
};
XR_ASSERT_SIZE(pressure, 32);

/*
 * usage[service id]: established flows come and go. XDP alone writes it; what the daemon
 * ages out is in usage_aged. Open are opened - closed - aged.
 */
struct usage {
	__u64 opened;
	__u64 closed;
};
XR_ASSERT_SIZE(usage, 16);

/*
 * traffic_ended[backend id]: what flows carried that XDP has taken out of flow_table; of those
 * that the daemon took out, in traffic_aged. Never goes back. Bytes are IP total lengths.
 */
struct traffic {
	__u64 flows;
	__u64 packets;
	__u64 bytes;
	__u64 reply_packets;
	__u64 reply_bytes;
};
XR_ASSERT_SIZE(traffic, 40);

/* fragments: the first fragment of a datagram says whose the others are. */
struct fragment_key {
	struct ip_addr saddr;
	struct ip_addr daddr;
	__be32 id;
	__u8 proto;
	__u8 pad[3];
};
XR_ASSERT_SIZE(fragment_key, 40);

struct fragment {
	__u64 seen_ns;
	__be16 sport;
	__be16 dport;
	__u8 proto; /* behind IPv6's extension headers, of which later ones have not all */
	__u8 pad[3];
	__u32 new_id; /* towards a backend that sees all clients as one; 0: its own */
	__u32 pad2;
};
XR_ASSERT_SIZE(fragment, 24);

/* path_mtus: what a hop on the way to an ipip backend said; the key is its address. */
struct path_mtu {
	__u64 seen_ns;
	__u32 mtu;
	__u32 pad;
};
XR_ASSERT_SIZE(path_mtu, 16);

#define XR_CONNECTION_ID_MAX 20 /* RFC 9000, 17.2 */

/* quic_ids: the connection ID that a client chose for its first Initials, and who has it. */
struct quic_key {
	__u32 service;
	__u8 length;
	__u8 id[XR_CONNECTION_ID_MAX]; /* zeros behind `length` */
	__u8 pad[3];
};
XR_ASSERT_SIZE(quic_key, 28);

/* affinity: where flows of a source address go. */
struct affinity_key {
	struct ip_addr addr;
	__u32 service;
};
XR_ASSERT_SIZE(affinity_key, 20);

/* A value of quic_ids and of affinity. */
struct sticky {
	__u64 seen_ns;
	__u32 backend;
	__u32 pad;
};
XR_ASSERT_SIZE(sticky, 16);

/* source_rules: the longest prefix decides. Its length counts the service's 32 bits, too. */
struct source_key {
	__u32 prefix_len;
	__u32 service;
	struct ip_addr addr;
};
XR_ASSERT_SIZE(source_key, 24);

enum xr_source {
	XR_SOURCE_ALLOW = 0,
	XR_SOURCE_DENY = 1,
};

#endif
