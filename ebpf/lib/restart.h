/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A client uses a port again while we still have its old flow. Its SYN goes to the bound
 * backend, and is noted; only that backend's SYN-ACK to just this SYN says that the old
 * connection is gone there and a new one has begun. So neither a client alone nor a stale
 * SYN-ACK of the old connection resets anything.
 */
#ifndef XR_RESTART_H
#define XR_RESTART_H

#include "binding.h"

/* Does the SYN-ACK take the SYN of this number, with or without its data? */
static __always_inline int takes_syn(const struct packet *p, __u32 isn)
{
	return (p->flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == (TCP_SYN | TCP_ACK) &&
	       p->ack - 1 - isn < XR_FRAME_LARGE;
}

static __always_inline void flow_note_syn(const struct packet *p, flow_entry_t *flow, __u8 wscale)
{
	flow_entry_t *peer;

	if (is_one_sided(flow)) {
		flow->later_syn = p->seq; /* see one_sided_track() */
		return;
	}
	peer = peer_of(&p->key, flow);
	if (!peer)
		return;
	flow->later_syn = p->seq;
	peer->later_syn = wscale;
}

static __always_inline void restart_entry(flow_entry_t *flow, __u32 isn, __u8 wscale, __u64 now_ns)
{
	flow->isn = isn;
	flow->seq_next = isn + 1;
	flow->wscale = wscale;
	flow->state = XR_TCP_ESTABLISHED;
	flow->flags &= ~(XR_FLOW_FIN | XR_FLOW_RST);
	flow->packets = 0;
	flow->bytes = 0;
	flow->last_seen_ns = now_ns;
	flow->seen_ns = now_ns;
	flow->established_us = 0;
	flow->latency_ns = 0;
	flow->fppl_ns = 0;
	flow->synack_us = 0;
	flow->first_data_us = 0;
	flow->later_syn = 0;
}

/* A backend's segment with SYN on an established flow; `wscale` is its window scale. */
static __always_inline void flow_restart(const struct packet *p, flow_entry_t *reply, __u8 wscale,
					 __u64 now_ns)
{
	flow_entry_t *forward = peer_of(&p->key, reply);
	__u32 scales;

	if (!forward || p->ack == forward->isn + 1 || !forward->later_syn ||
	    !takes_syn(p, forward->later_syn))
		return;
	scales = reply->later_syn != XR_NO_WSCALE && wscale != XR_NO_WSCALE;
	restart_entry(forward, forward->later_syn, scales ? reply->later_syn : 0, now_ns);
	forward->seq_next = p->ack;
	forward->ack = p->seq + 1;
	forward->window = 0xffff; /* until the client says more */
	restart_entry(reply, p->seq, scales ? wscale : 0, now_ns);
	reply->ack = p->ack;
	reply->window = p->window;
	flow_returns(forward);
	count(XR_COUNT_flow_restarted);
}

/*
 * The SYN-ACK of a flow that has begun anew went where the old client's packets came from: the
 * same SYN, sent again, says where this one is. One that comes late, after data, says nothing.
 */
static __always_inline void syn_follow_client(struct xdp_md *ctx, const struct packet *p,
					      flow_entry_t *flow)
{
	flow_entry_t *peer;

	if ((__s32)(flow->seq_next - (p->seq + segment_length(p))) > 0 ||
	    came_as_ever(ctx, p, flow))
		return;
	peer = peer_of(&p->key, flow);
	if (peer)
		client_moves(ctx, p, flow, peer);
}

static __always_inline void pending_note_syn(const struct packet *p, pending_flow_t *forward,
					     __u8 wscale)
{
	forward->seq = p->seq;
	forward->ack = wscale;
}

/* The same for a pending flow: it goes on as that of the later SYN, promoted by its ACK. */
static __always_inline int pending_restart(const struct packet *p, pending_flow_t *forward,
					   pending_flow_t *reply, __u64 now_ns)
{
	if (!forward->seq || !takes_syn(p, forward->seq))
		return 0;
	forward->isn = forward->seq;
	forward->syn_data = p->ack - 1 - forward->seq;
	forward->wscale = forward->ack;
	forward->flags &= XR_PENDING_FULLNAT;
	forward->seen_ns = now_ns;
	forward->last_seen_ns = now_ns;
	forward->seq = 0;
	reply->flags &= XR_PENDING_FULLNAT;
	reply->seen_ns = now_ns;
	count(XR_COUNT_flow_restarted);
	return 1;
}

#endif
