/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Segments of a decided flow that is not in flow_table. */
#ifndef XR_PENDING_H
#define XR_PENDING_H

#include "promote.h"
#include "restart.h"

/*
 * REPLY was evicted, and nobody has taken the tuple since: what the backend says would not
 * get back. It comes back as far as FORWARD knows it; 0 when it cannot.
 */
static __always_inline struct pending_flow *restore_reply(struct xdp_md *ctx,
							  const struct packet *p,
							  const struct pending_flow *forward,
							  struct flow_key *key, __u64 now_ns)
{
	struct scratch *scratch = scratch_lookup();
	struct pending_flow *value;

	if (!scratch || tuple_in_use(p, key))
		return 0;
	value = &scratch->pending;
	reply_fill(value, ctx, p);
	value->seen_ns = forward->seen_ns;
	value->last_seen_ns = now_ns;
	value->backend = forward->backend;
	value->service = forward->service;
	value->mode = forward->mode;
	value->reason = forward->reason;
	value->flags = forward->flags & XR_PENDING_PROVEN;
	pending_flows_insert(key, value);
	return pending_flows_lookup(key);
}

/* Does this segment of the client get the flow into flow_table, if there is room? */
static __always_inline int may_promote(const struct packet *p, const struct pending_flow *forward,
				       const struct pending_flow *reply, __u64 now_ns)
{
	if (is_proven(forward, reply))
		return proven_speaks(p, reply, now_ns);
	return completes_handshake(p, forward, reply);
}

/* Is it a flow that the hash has to find again when its entries are lost? */
static __always_inline int is_stateless(const struct pending_flow *reply)
{
	return (reply->flags & XR_PENDING_PROVEN) || reply->reason == XR_REASON_ORPHAN ||
	       reply->reason == XR_REASON_TABLE_FULL;
}

/* What a backend's segment says about the flow: its ISN, a refusal, a new connection. */
static __always_inline void pending_answered(struct xdp_md *ctx, const struct packet *p,
					     struct pending_flow *forward,
					     struct pending_flow *reply, __u8 wscale, __u64 now_ns)
{
	int answers = (p->flags & TCP_ACK) && (p->ack == forward->isn + 1 ||
					       p->ack == forward->isn + 1 + forward->syn_data);

	if (!answers && pending_restart(p, forward, reply, now_ns))
		answers = 1;
	if ((is_proven(forward, reply) ? !reply->window && !(reply->flags & XR_PENDING_SYNACK)
				       : reply->reason == XR_REASON_ORPHAN) &&
	    !(forward->flags & XR_PENDING_CLOSED) &&
	    (p->flags & (TCP_ACK | TCP_SYN | TCP_RST)) == TCP_ACK)
		orphan_begin(p, forward, reply);
	if (is_proven(forward, reply)) {
		proven_from_backend(ctx, p, forward, reply);
	} else if (answers && (p->flags & TCP_RST)) {
		forward->flags |= XR_PENDING_CLOSED; /* refused */
	} else if (answers && (p->flags & TCP_SYN)) {
		reply->isn = p->seq;
		reply->window = p->window;
		reply->wscale = wscale;
		if (!(reply->flags & XR_PENDING_SYNACK))
			reply->synack_us = elapsed_us(reply->seen_ns, now_ns);
		reply->flags = XR_PENDING_SYNACK;
	}
}

#endif
