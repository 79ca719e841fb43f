/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Everything that the XDP program and user space share: map keys, map values,
 * event records, enumerations, sizes. xdp_router/core/abi.py mirrors this file;
 * a test compares the two through the object's BTF.
 *
 * Addresses and ports are in network byte order, as on the wire. All other
 * integers are in host byte order. Times are CLOCK_MONOTONIC nanoseconds
 * (bpf_ktime_get_ns) unless the name ends in _us. Padding is explicit, and user
 * space zeroes it.
 *
 * A change of a layout or of a number bumps XR_ABI_VERSION: it is part of the pin
 * path, so that another version's maps are never misread.
 */
#ifndef XR_ABI_H
#define XR_ABI_H

#define XR_ABI_VERSION 2

#define XR_NO_BACKEND 0xffffffffU /* no such backend: an unset fallback, a refused flow */
#define XR_HASH_SLOTS 1021        /* Maglev table size of one service, a prime */
#define XR_MAX_VLAN_TAGS 2        /* 802.1ad outer + 802.1Q inner */
#define XR_NO_WSCALE 0xff         /* the SYN or SYN-ACK had no window scale option */

/* Frames up to these lengths travel in an event of the matching record size. */
#define XR_FRAME_SMALL 240
#define XR_FRAME_LARGE 1520
#define XR_RECORD_SMALL 320
#define XR_RECORD_LARGE 1600

#define XR_ASSERT_SIZE(type, size) _Static_assert(sizeof(struct type) == (size), #type " size")

/* Which entry of a flow a pending_flows key names. flow_table keys use KIND_NONE. */
enum xr_kind {
	XR_KIND_NONE = 0,
	XR_KIND_SEEN = 1,    /* first packet was seen; only XDP writes it */
	XR_KIND_FORWARD = 2, /* client to service: the decision, the arbiter */
	XR_KIND_REPLY = 3,   /* backend to client: owns the reply tuple */
};

/* One direction of a flow as its packets look on the wire before rewriting. */
struct flow_key {
	__be32 saddr;
	__be32 daddr;
	__be16 sport;
	__be16 dport;
	__u8 proto;
	__u8 kind; /* enum xr_kind */
	__u16 pad;
};
XR_ASSERT_SIZE(flow_key, 16);

/* services and backend_index share this key. */
struct endpoint_key {
	__be32 addr;
	__be16 port;
	__u8 proto;
	__u8 pad;
};
XR_ASSERT_SIZE(endpoint_key, 8);

enum xr_mode {
	XR_MODE_RACE = 0,
	XR_MODE_SNAPSHOT = 1,
	XR_MODE_INLINE = 2,
	XR_MODE_FALLBACK = 3, /* decided without a measurement: the configured fallback */
	XR_MODE_HASH = 4,     /* decided without a measurement: consistent hash */
	XR_MODE_REFUSED = 5,  /* nobody can take the flow: answered by RST */
};

enum xr_forwarding {
	XR_FORWARD_NAT = 0,
};

/* Why a flow went where it went. */
enum xr_reason {
	XR_REASON_NONE = 0,
	XR_REASON_RACE_WON = 1,       /* its own race: first valid answer */
	XR_REASON_RACE_JOINED = 2,    /* joined a race that was running or just over */
	XR_REASON_DEADLINE = 3,       /* no answer before the deadline */
	XR_REASON_ALL_REFUSED = 4,    /* every candidate refused */
	XR_REASON_NO_CANDIDATE = 5,   /* no backend is up */
	XR_REASON_RING_FULL = 6,      /* XDP: event could not be reserved */
	XR_REASON_BUDGET = 7,         /* XDP: event budget spent */
	XR_REASON_NO_HEARTBEAT = 8,   /* XDP: daemon silent */
	XR_REASON_FRAME_TOO_LONG = 9, /* XDP: first packet longer than an event holds */
	XR_REASON_PROBE_BUDGET = 10,  /* daemon: no probe could be sent within budget */
	XR_REASON_ORPHAN = 11,        /* XDP: mid-stream segment hashed to a backend */
	XR_REASON_TUPLE_TAKEN = 12,   /* winner's reply tuple belongs to another flow: next one */
	XR_REASON_OVERLOAD = 13,      /* daemon: too many open decisions */
	XR_REASON_TABLE_FULL = 14,    /* XDP: flow_table has no room */
	XR_REASON_BACKLOG = 15,       /* XDP: too much waits in the ring to be answered in time */
};

enum xr_orphans {
	XR_ORPHANS_RESET = 0,
	XR_ORPHANS_HASH = 1,
};

struct service {
	__u64 deadline_ns;
	__u64 event_interval_ns; /* one CPU's budget: one first-packet event per interval */
	__u64 event_burst_ns;    /* credit that an idle bucket collects at most */
	__u32 id;
	__u32 first_backend; /* lowest id; an adopted service's need not be in a row */
	__u32 backend_count;
	__u32 fallback; /* backend id or XR_NO_BACKEND */
	__u8 mode;      /* enum xr_mode */
	__u8 forwarding;
	__u8 orphans;
	__u8 hash_active; /* 0 or 1: hash_tables[2 * id + hash_active] */
	__u32 pad;
};
XR_ASSERT_SIZE(service, 48);

/* backend.flags */
#define XR_BACKEND_UP 0x01       /* may be chosen; neighbour and route are resolved */
#define XR_BACKEND_DRAINING 0x02 /* keeps its flows, gets no new ones */
#define XR_BACKEND_SHARED 0x04   /* another service has the same address and port */
#define XR_BACKEND_KERNEL 0x08   /* its packets are handed to the kernel, which forwards them */

struct backend {
	__be32 addr;
	__be16 port;
	__u8 proto;
	__u8 flags;
	__u32 service;
	__u32 ifindex;     /* egress; 0: no path */
	__be32 probe_addr; /* our address that its probes are sent from */
	__u8 dmac[6];      /* next hop */
	__u8 smac[6];      /* the egress interface's */
	__u16 weight;
	__u16 pad;
};
XR_ASSERT_SIZE(backend, 36);

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

/* pending_flow.flags */
#define XR_PENDING_SYNACK 0x01  /* REPLY: isn is valid */
#define XR_PENDING_REFUSED 0x02 /* FORWARD: answer with RST */
#define XR_PENDING_CLOSED 0x04  /* FORWARD: RST seen before the handshake was complete */
#define XR_PENDING_PROVEN 0x08  /* handshake complete, but flow_table had no room */
#define XR_PENDING_FIN 0x10     /* of a proven flow: this side's FIN was seen */

/*
 * A flow between its first packet and its verified ACK: up to three entries, one a
 * kind. The daemon and XDP insert with BPF_NOEXIST and never overwrite; after that
 * XDP alone changes fields in place.
 */
struct pending_flow {
	__u64 seen_ns; /* first packet arrived */
	__u64 last_seen_ns;
	__u64 packets;
	__u64 bytes; /* IP total lengths */
	__u32 isn;   /* SEEN, FORWARD: client's; REPLY: server's */
	__u32 backend;
	__u32 service;
	__u32 ifindex;    /* REPLY: egress to the client; SEEN: ingress */
	__be32 new_saddr; /* the tuple after rewriting */
	__be32 new_daddr;
	__be16 new_sport;
	__be16 new_dport;
	__u8 dmac[6];     /* REPLY: next hop to the client */
	__u8 smac[6];     /* REPLY: our MAC that the client talks to */
	__u32 latency_ns; /* FORWARD: first packet seen -> decided */
	__u32 fppl_ns;    /* FORWARD: first packet in -> same packet out; XDP writes */
	__u32 synack_us;  /* REPLY: first packet seen -> SYN-ACK seen */
	__u16 syn_data;   /* payload bytes in the SYN */
	__u8 wscale;      /* sender's window scale, RFC 7323; XR_NO_WSCALE: none */
	__u8 flags;
	__u8 mode;   /* enum xr_mode */
	__u8 reason; /* enum xr_reason */
	__u16 pad;
	__u32 window; /* REPLY: of the SYN-ACK, never scaled; proven: the newest, in bytes */
	__u32 seq;    /* FORWARD: ISN of a later SYN; REPLY, proven: the backend's next */
	__u32 ack;    /* FORWARD: that SYN's window scale; REPLY, proven: what it has taken */
};
XR_ASSERT_SIZE(pending_flow, 104);

/* TCP detail of an established flow. */
enum xr_tcp_state {
	XR_TCP_NONE = 0,
	XR_TCP_ESTABLISHED = 1,
	XR_TCP_CLOSING = 2, /* FIN both ways or RST, inside the window: a hint */
};

enum xr_direction {
	XR_DIR_FORWARD = 0, /* client to backend */
	XR_DIR_REPLY = 1,
};

/* flow_entry.flags */
#define XR_FLOW_FIN 0x01 /* this side's FIN was seen inside the window */
#define XR_FLOW_RST 0x02 /* likewise its RST */

/* One direction of an established flow. The first 64 bytes are what a packet touches. */
struct flow_entry {
	__u64 last_seen_ns; /* coarse clock */
	__u64 packets;
	__u64 bytes;    /* IP total lengths */
	__u32 seq_next; /* highest sequence number sent + 1 */
	__u32 ack;      /* highest acknowledgement sent */
	__u32 window;   /* last advertised, scaled, bytes */
	__u8 state;     /* enum xr_tcp_state */
	__u8 flags;
	__u8 wscale;
	__u8 direction;   /* enum xr_direction */
	__be32 new_saddr; /* the tuple after rewriting */
	__be32 new_daddr;
	__be16 new_sport;
	__be16 new_dport;
	__u16 l3_delta; /* what rewriting adds to the one's complement sums, RFC 1624 */
	__u16 l4_delta;
	__u32 backend;
	__u32 ifindex;  /* REPLY: egress; FORWARD: the ingress it was promoted on */
	__u8 in_mac[6]; /* our MAC that this direction's frames are addressed to */
	__u8 dmac[6];   /* next hop to the client; FORWARD: where its frames come from */
	__u8 smac[6];   /* REPLY: our MAC on that side */
	__u8 mode;
	__u8 reason;
	__u32 service;
	__u64 seen_ns;        /* first packet of the flow */
	__u64 established_ns; /* promotion */
	__u32 isn;            /* this side's */
	__u32 latency_ns;     /* first packet seen -> decided */
	__u32 fppl_ns;
	__u32 synack_us;     /* first packet seen -> SYN-ACK */
	__u32 first_data_us; /* first packet seen -> this side's first payload; 0: none yet */
	__u32 later_syn;     /* FORWARD: ISN of a later SYN; REPLY: that SYN's window scale */
};
XR_ASSERT_SIZE(flow_entry, 128);

enum xr_event_type {
	XR_EVENT_FIRST_PACKET = 1,
	XR_EVENT_PROBE_REPLY = 2,
	XR_EVENT_ESTABLISHED = 3, /* promoted to flow_table */
	XR_EVENT_XDP_DECIDED = 4, /* XDP walked the degrade chain; reason says why */
};

/* event.detail of XR_EVENT_PROBE_REPLY */
enum xr_probe_answer {
	XR_PROBE_SYNACK = 1,
	XR_PROBE_RST = 2,
	XR_PROBE_UNREACHABLE = 3, /* ICMP destination unreachable */
};

/* Header of each ring buffer record; the frame follows it in first-packet events. */
struct event {
	__u64 time_ns;
	struct flow_key key; /* first packet: client to service; probe reply: backend to us */
	__u32 service;
	__u32 backend;
	__u32 ifindex; /* ingress */
	__u32 seq;     /* first packet: ISN; probe reply: the probe's sequence number */
	__u16 frame_len;
	__u8 type;   /* enum xr_event_type */
	__u8 detail; /* probe answer, or mode */
	__u8 reason; /* enum xr_reason */
	__u8 wscale; /* first packet: client's window scale */
	__u16 syn_data;
	__u32 fppl_ns;
	__u32 synack_us;
	__u64 seen_ns;
};
XR_ASSERT_SIZE(event, 64);

struct event_small {
	struct event head;
	__u8 frame[XR_RECORD_SMALL - 64];
};
XR_ASSERT_SIZE(event_small, XR_RECORD_SMALL);

struct event_large {
	struct event head;
	__u8 frame[XR_RECORD_LARGE - 64];
};
XR_ASSERT_SIZE(event_large, XR_RECORD_LARGE);

/* tokens[]: per-CPU budgets. */
#define XR_TOKENS_EVENTS 0  /* first-packet events of all services */
#define XR_TOKENS_ICMP 1    /* ICMP errors that XDP sends */
#define XR_TOKENS_SERVICE 2 /* + service id: events of that service */

struct token_bucket {
	__u64 credit_ns;
	__u64 last_ns;
	__u64 asked; /* how often a token was wanted here, granted or not */
};
XR_ASSERT_SIZE(token_bucket, 24);

/* prefix_tokens: the event budget of one source prefix, shared by all CPUs. */
struct prefix_key {
	__be32 addr; /* /24 */
};
XR_ASSERT_SIZE(prefix_key, 4);

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
	__u64 table_full_ns;      /* [0]: a proven flow last found no room in flow_table */
	__u64 stateless_until_ns; /* [1 + id]: mid-stream segments are hashed until then */
};
XR_ASSERT_SIZE(pressure, 16);

/* interface.flags */
#define XR_IF_BOUNCE_REDIRECT 0x01 /* answer by bpf_redirect(ingress), not XDP_TX */
#define XR_IF_VIRTUAL_MAC 0x02     /* virtual_mac counts as ours */
#define XR_IF_HANDOFF_FORWARD 0x04 /* the kernel forwards what comes in here for a backend */
#define XR_IF_HANDOFF_REPLY 0x08   /* and what comes in here with a service's address */
#define XR_IF_NO_XMIT 0x10         /* takes no XDP frames: nothing can be redirected to it */

struct interface {
	__u8 mac[6];
	__u8 virtual_mac[6];
	__u32 flags;
	__be32 addr; /* source of ICMP errors that are sent there; 0: it has none */
	__u32 mtu;
};
XR_ASSERT_SIZE(interface, 24);

/* control.flags */
#define XR_CONTROL_NO_XMIT 0x01 /* some interface has XR_IF_NO_XMIT: look before replying */

/* control[0] */
struct control {
	__u64 heartbeat_ns;       /* daemon's last sign of life */
	__u64 heartbeat_stale_ns; /* older than this: the daemon is gone */
	__u64 resumed_ns;         /* end of the last gap in the heartbeat, and so in last_seen */
	__u64 reinject_mark;      /* secret; see struct reinject_meta */
	__u64 pending_idle_ns;    /* another ISN on a pending flow idle this long: new flow */
	__u64 flow_idle_ns;       /* the same for an established flow */
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
	__u32 flags;
};
XR_ASSERT_SIZE(control, 136);

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

/* counters[]: why a packet was not simply forwarded, or what was done about it. */
#define XR_COUNTERS(X)                                                                             \
	X(pass_malformed) /* lengths or headers do not fit: left to the kernel */                  \
	X(pass_other_mac) /* frame for another MAC */                                              \
	X(pass_not_ipv4)                                                                           \
	X(pass_not_tcp)                                                                            \
	X(pass_fragment) /* later fragment: no ports, so not known to be ours */                   \
	X(pass_not_service)                                                                        \
	X(first_packet)     /* SYN held and handed to the daemon */                                \
	X(syn_held_again)   /* retransmit while its decision is open */                            \
	X(syn_retransmit)   /* retransmit of a decided flow: same backend */                       \
	X(syn_on_live_flow) /* other ISN on a live flow: to the bound backend */                   \
	X(syn_reopened)     /* other ISN on a closed or idle flow: a new flow */                   \
	X(ring_full)                                                                               \
	X(budget_global)                                                                           \
	X(budget_service)                                                                          \
	X(heartbeat_stale)                                                                         \
	X(deadline_passed) /* SYN retransmit found its decision overdue */                         \
	X(frame_too_long)                                                                          \
	X(pending_insert_failed)                                                                   \
	X(pending_reply_taken) /* reply tuple belongs to another flow */                           \
	X(decided_fallback)    /* by XDP */                                                        \
	X(decided_hash)        /* by XDP */                                                        \
	X(refused_no_backend)  /* by XDP */                                                        \
	X(refused_by_daemon)                                                                       \
	X(promoted)                                                                                \
	X(promote_conflict)                                                                        \
	X(promote_table_full)                                                                      \
	X(orphan_hashed)                                                                           \
	X(orphan_reset)                                                                            \
	X(orphan_dropped) /* RST, or its SYN is still held: nothing to answer */                   \
	X(probe_synack)                                                                            \
	X(probe_rst)                                                                               \
	X(probe_unreachable)                                                                       \
	X(probe_unverified) /* looks like an answer, keyed hash does not fit */                    \
	X(reinjected)                                                                              \
	X(fin_outside_window)                                                                      \
	X(rst_inexact)                                                                             \
	X(client_moved)    /* replies follow the client's new next hop */                          \
	X(closing_revoked) /* segment after FIN or RST: the flow lives on */                       \
	X(ttl_exceeded)                                                                            \
	X(fragment_dropped) /* first fragment of service traffic */                                \
	X(no_path)          /* backend has no resolved route or neighbour */                       \
	X(tail_call_missed)                                                                        \
	X(event_lost) /* probe reply or state change: ring full */                                 \
	X(budget_prefix)                                                                           \
	X(ring_deep)          /* the daemon is behind: decided by XDP */                           \
	X(table_full)         /* first packet while flow_table is full: hashed */                  \
	X(promoted_late)      /* a proven flow found room at last */                               \
	X(flow_restarted)     /* the backend took a new connection on a live flow's ports */       \
	X(reply_tuple_freed)  /* taken over from another service's flow that is over */            \
	X(client_is_backend)  /* candidate passed over: it is the client itself */                 \
	X(handed_to_kernel)   /* rewritten, and left to the kernel to forward */                   \
	X(icmp_time_exceeded) /* sent */                                                           \
	X(icmp_too_big)       /* fragmentation needed, sent */                                     \
	X(icmp_over_budget)   /* not sent */                                                       \
	X(icmp_no_source)     /* not sent: the interface has no address */                         \
	X(too_big_dropped)    /* too long for the egress, may be fragmented, not by the kernel */  \
	X(icmp_translated)    /* error about a flow, delivered to its other side */

enum xr_counter {
#define XR_COUNTER_ENUM(name) XR_COUNT_##name,
	XR_COUNTERS(XR_COUNTER_ENUM)
#undef XR_COUNTER_ENUM
	XR_COUNTER_MAX,
};

/* stages[]: slow paths, each a program of its own with a stack of its own. */
enum xr_stage {
	XR_STAGE_SYN = 0,        /* SYN of a service: hold, retransmit, decide */
	XR_STAGE_SYN_BOUND = 1,  /* SYN on an established flow */
	XR_STAGE_DECIDE = 2,     /* XDP walks the degrade chain */
	XR_STAGE_SEGMENT = 3,    /* other segment of a service without an established flow */
	XR_STAGE_REPLY = 4,      /* backend to client while the flow is pending */
	XR_STAGE_PROBE = 5,      /* answer to a probe */
	XR_STAGE_ICMP = 6,       /* ICMP error that embeds a probe or a packet of a flow */
	XR_STAGE_ICMP_ERROR = 7, /* answers a packet by an ICMP error */
	XR_STAGE_LONG = 8,       /* longer than the smallest MTU */
	XR_STAGE_MAX = 9,
};

#endif
