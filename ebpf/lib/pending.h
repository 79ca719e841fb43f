/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Segments of a decided flow that is not in flow_table. */
#ifndef XR_PENDING_H
#define XR_PENDING_H

#include "promote.h"
#include "restart.h"

/*
 * REPLY was evicted, and nobody has taken the tuple since: what the backend says would not
 * get back. It comes back as far as FORWARD knows it, into its table; 0 when it cannot.
 */
static __always_inline pending_flow_t *restore_reply(struct xdp_md *ctx, const struct packet *p,
						     const pending_flow_t *forward, flow_key_t *key,
						     __u64 now_ns, int flood)
{
	struct scratch *scratch = scratch_lookup(ctx);
	pending_flow_t *value;

	if (!scratch || tuple_in_use(p, key) || tuple_is_beside(p, flood, key))
		return 0;
	value = &scratch->pending;
	reply_fill(value, ctx, p);
	value->seen_ns = forward->seen_ns;
	value->last_seen_ns = now_ns;
	value->backend = forward->backend;
	value->service = forward->service;
	value->mode = forward->mode;
	value->reason = forward->reason;
	value->flags = forward->flags & (XR_PENDING_PROVEN | XR_PENDING_FULLNAT);
	value->vlan = vlan_to_client(ctx, backends_lookup(forward->backend));
	pending_insert_in(flood, key, value);
	return pending_lookup_in(flood, key);
}

/* Does this segment of the client get the flow into flow_table, if there is room? */
static __always_inline int may_promote(const struct packet *p, const pending_flow_t *forward,
				       const pending_flow_t *reply, __u64 now_ns)
{
	if (is_proven(forward, reply))
		return proven_speaks(p, reply, now_ns);
	return completes_handshake(p, forward, reply);
}

/* Is it a flow that the hash has to find again when its entries are lost? */
static __always_inline int is_stateless(const pending_flow_t *reply)
{
	if (reply->reason == XR_REASON_STATELESS) /* it waits to be promoted, see lib/stateless.h */
		return 0;
	return (reply->flags & XR_PENDING_PROVEN) || reply->reason == XR_REASON_ORPHAN ||
	       reply->reason == XR_REASON_TABLE_FULL;
}

/* The first answer to a flow's first packet: from its departure here, without what held it. */
static __always_inline void load_answered_first(const pending_flow_t *forward,
						const pending_flow_t *reply, __u64 now_ns)
{
	load_answered(reply->backend, now_ns - reply->seen_ns - forward->fppl_ns, now_ns);
	sign_answered(reply->backend);
}

/* What a backend's segment says about the flow: its ISN, a refusal, a new connection. */
static __always_inline void pending_answered(struct xdp_md *ctx, const struct packet *p,
					     pending_flow_t *forward, pending_flow_t *reply,
					     __u8 wscale, __u64 now_ns)
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
		if (!(forward->flags & XR_PENDING_CLOSED))
			sign_bad(reply->backend,
				 reply->flags & XR_PENDING_SYNACK ? SIGN_CUT : SIGN_REFUSED,
				 reply->new_daddr);
		forward->flags |= XR_PENDING_CLOSED; /* refused */
	} else if (answers && (p->flags & TCP_SYN)) {
		reply->isn = p->seq;
		reply->window = p->window;
		reply->wscale = wscale;
		if (!(reply->flags & XR_PENDING_SYNACK)) {
			reply->synack_us = elapsed_us(reply->seen_ns, now_ns);
			load_answered_first(forward, reply, now_ns);
		}
		reply->flags = (reply->flags & XR_PENDING_FULLNAT) | XR_PENDING_SYNACK;
	}
}

/*
 * stage_forward: a client's packet of a flow that another stage has found decided, or has decided.
 * One place for all of them: what it takes to send is more to verify than to look up again.
 */
static __always_inline int forward_stage(struct xdp_md *ctx)
{
	pending_flow_t *forward;
	flow_key_t key;
	struct packet p;

	if (parse_packet(ctx, &p) != PARSE_TCP)
		return XDP_PASS;
	flow_key_of_kind(&p, XR_KIND_FORWARD, &key);
	forward = pending_lookup(&key);
	if (!forward) /* evicted at once: newer ones fill the table */
		return drop(XR_COUNT_pending_insert_failed);
	return pending_forward(ctx, &p, forward);
}

#endif
