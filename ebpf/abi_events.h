/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Records of the ring buffer. Included by abi.h. */
#ifndef XR_ABI_EVENTS_H
#define XR_ABI_EVENTS_H

enum xr_event_type {
	XR_EVENT_FIRST_PACKET = 1,
	XR_EVENT_PROBE_REPLY = 2,
	XR_EVENT_ESTABLISHED = 3, /* promoted to flow_table */
	XR_EVENT_XDP_DECIDED = 4, /* XDP walked the degrade chain; reason says why */
	XR_EVENT_DATAGRAM = 5,    /* a later datagram of a flow whose first packet is held */
};

/* event.detail of XR_EVENT_PROBE_REPLY */
enum xr_probe_answer {
	XR_PROBE_SYNACK = 1,
	XR_PROBE_RST = 2,
	XR_PROBE_UNREACHABLE = 3, /* ICMP destination unreachable */
	XR_PROBE_ECHO = 4,        /* ICMP echo reply */
	XR_PROBE_DATAGRAM = 5,    /* UDP; the record goes on with its payload */
};

/* Header of each ring buffer record; the frame follows it in first-packet events. */
struct event {
	__u64 time_ns;
	struct flow_key6 key; /* first packet: client to service; probe reply: backend to us */
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
XR_ASSERT_SIZE(event, 88);

/* What mode inline compared, the chosen backend and the other one among it. */
struct compared {
	__u32 backend[2]; /* XR_NO_BACKEND: there was none */
	__u32 wait_ns[2]; /* expected until its answer; 0: nothing is known */
	__u32 open[2];    /* flows that it had */
};
XR_ASSERT_SIZE(compared, 24);

/* XR_EVENT_XDP_DECIDED of that mode; frame_len is the size of what follows the head. */
struct event_compared {
	struct event head;
	struct compared compared;
};
XR_ASSERT_SIZE(event_compared, 112);

struct event_small {
	struct event head;
	__u8 frame[XR_FRAME_SMALL];
};
XR_ASSERT_SIZE(event_small, XR_RECORD_SMALL);

struct event_large {
	struct event head;
	__u8 frame[XR_FRAME_LARGE];
};
XR_ASSERT_SIZE(event_large, XR_RECORD_LARGE);

#endif
