/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Flows: their keys and entries. Included by abi.h. */
#ifndef XR_ABI_FLOWS_H
#define XR_ABI_FLOWS_H

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

struct flow_key6 {
	struct ip_addr saddr;
	struct ip_addr daddr;
	__be16 sport;
	__be16 dport;
	__u8 proto;
	__u8 kind;
	__u16 pad;
};
XR_ASSERT_SIZE(flow_key6, 40);

/* pending_flow.flags */
#define XR_PENDING_SYNACK 0x01   /* REPLY: isn is valid */
#define XR_PENDING_REFUSED 0x02  /* FORWARD: answer with RST */
#define XR_PENDING_CLOSED 0x04   /* FORWARD: RST seen before the handshake was complete */
#define XR_PENDING_PROVEN 0x08   /* handshake complete, but flow_table had no room */
#define XR_PENDING_FIN 0x10      /* of a proven flow: this side's FIN was seen */
#define XR_PENDING_PROMOTED 0x20 /* FORWARD, REPLY: what it carried is counted in flow_table */
#define XR_PENDING_AGAIN 0x40    /* FORWARD: its SYN came again, unanswered, and that was noted */
#define XR_PENDING_FULLNAT 0x80  /* its source is ours. REPLY, CLOSED too: its port rests */

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
	__u8 mode;    /* enum xr_mode */
	__u8 reason;  /* enum xr_reason */
	__u16 vlan;   /* REPLY: XR_VLAN_, towards the client */
	__u32 window; /* REPLY: of the SYN-ACK, never scaled; proven: the newest, in bytes */
	__u32 seq;    /* FORWARD: ISN of a later SYN; REPLY, proven: the backend's next */
	__u32 ack;    /* FORWARD: that SYN's window scale; REPLY, proven: what it has taken */
};
XR_ASSERT_SIZE(pending_flow, 104);

/* The same fields with longer addresses. */
struct pending_flow6 {
	__u64 seen_ns;
	__u64 last_seen_ns;
	__u64 packets;
	__u64 bytes;
	__u32 isn;
	__u32 backend;
	__u32 service;
	__u32 ifindex;
	struct ip_addr new_saddr;
	struct ip_addr new_daddr;
	__be16 new_sport;
	__be16 new_dport;
	__u8 dmac[6];
	__u8 smac[6];
	__u32 latency_ns;
	__u32 fppl_ns;
	__u32 synack_us;
	__u16 syn_data;
	__u8 wscale;
	__u8 flags;
	__u8 mode;
	__u8 reason;
	__u16 vlan;
	__u32 window;
	__u32 seq;
	__u32 ack;
};
XR_ASSERT_SIZE(pending_flow6, 128);

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
#define XR_FLOW_FIN 0x01       /* this side's FIN was seen inside the window */
#define XR_FLOW_RST 0x02       /* likewise its RST */
#define XR_FLOW_ONE_SIDED 0x04 /* the other side's packets do not come through here */
#define XR_FLOW_STAGE 0x08     /* its packets change their length: stage_send sends them */
#define XR_FLOW_KILLED 0x10    /* its backend has died: answered by RSTs */
#define XR_FLOW_FULLNAT 0x80   /* its packets to the backend have a source of ours */

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
	__u32 established_us; /* first packet seen -> promotion */
	__u16 vlan;           /* REPLY: XR_VLAN_, towards the client */
	__u8 pad;
	__u8 open; /* FORWARD: 1 while it is one of its backend's open flows; see lib/load.h */
	__u32 isn; /* this side's */
	__u32 latency_ns; /* first packet seen -> decided */
	__u32 fppl_ns;
	__u32 synack_us;     /* first packet seen -> SYN-ACK */
	__u32 first_data_us; /* first packet seen -> this side's first payload; 0: none yet */
	__u32 later_syn;     /* FORWARD: ISN of a later SYN; REPLY: that SYN's window scale */
};
XR_ASSERT_SIZE(flow_entry, 128);

struct flow_entry6 {
	__u64 last_seen_ns;
	__u64 packets;
	__u64 bytes;
	__u32 seq_next;
	__u32 ack;
	__u32 window;
	__u8 state;
	__u8 flags;
	__u8 wscale;
	__u8 direction;
	struct ip_addr new_saddr;
	struct ip_addr new_daddr;
	__be16 new_sport;
	__be16 new_dport;
	__u16 l3_delta;
	__u16 l4_delta;
	__u32 backend;
	__u32 ifindex;
	__u8 in_mac[6];
	__u8 dmac[6];
	__u8 smac[6];
	__u8 mode;
	__u8 reason;
	__u32 service;
	__u64 seen_ns;
	__u32 established_us;
	__u16 vlan;
	__u8 pad;
	__u8 open;
	__u32 isn;
	__u32 latency_ns;
	__u32 fppl_ns;
	__u32 synack_us;
	__u32 first_data_us;
	__u32 later_syn;
};
XR_ASSERT_SIZE(flow_entry6, 152);

#endif
