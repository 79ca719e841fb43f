/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * stage_killed: a packet of a flow whose backend has died. Its client is told at once, instead of
 * waiting for minutes, and comes back as a new flow: TCP by a RST at each segment, as long as it
 * sends any (the first one alone can miss); UDP by a new decision.
 */
#ifndef XR_KILLED_H
#define XR_KILLED_H

#include "pending.h"
#include "previous.h"
#include "syn.h"

/* Both directions answer by RSTs from now on, also when the backend is back: what it may still
 * say is of a connection that its client has given up. */
static __always_inline void kill_flow(flow_entry_t *flow, flow_entry_t *peer)
{
	flow->state = XR_TCP_CLOSING;
	flow->flags |= XR_FLOW_KILLED | XR_FLOW_RST;
	if (!peer) {
		if (is_one_sided(flow))
			flow_leaves(flow);
		return;
	}
	peer->state = XR_TCP_CLOSING;
	peer->flags |= XR_FLOW_KILLED | XR_FLOW_RST;
	flow_leaves(forward_of(flow, peer));
}

static __always_inline int killed_stage(struct xdp_md *ctx)
{
	flow_entry_t *flow, *peer = 0;
	pending_flow_t *forward;
	void *before = 0; /* the table that it is in, unless that is flow_table */
	flow_key_t key;
	struct packet p;
	int parsed;

	parsed = parse_packet(ctx, &p);
	if (parsed == PARSE_FRAGMENT_LATER) /* the first one has the answer */
		return drop(XR_COUNT_fragment_dropped);
	if (parsed != PARSE_TCP && parsed != PARSE_UDP)
		return XDP_PASS;
	flow = flow_table_lookup(&p.key);
	if (!flow) { /* nobody may move it for now, or there is no room */
		before = previous_table();
		flow = before ? previous_entry(before, &p.key) : 0;
	}
	if (flow)
		peer = before ? previous_peer(before, &p.key, flow, &key) : peer_of(&p.key, flow);
	if (parsed == PARSE_UDP || (p.flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN) {
		if (flow)
			forget_flow_in(before, ctx, &p, flow, peer);
		flow_key_of_kind(&p, XR_KIND_FORWARD, &key);
		forget_pending(&p, pending_lookup(&key));
		count(XR_COUNT_killed_anew);
		return go_to_stage(ctx, parsed == PARSE_UDP ? XR_STAGE_DATAGRAM : XR_STAGE_SYN);
	}
	if (flow) {
		if (!(flow->flags & XR_FLOW_KILLED)) {
			kill_flow(flow, peer);
			count(XR_COUNT_killed);
		}
		return answer_rst(ctx, &p, XR_COUNT_killed_reset);
	}
	flow_key_of_kind(&p, XR_KIND_FORWARD, &key);
	forward = pending_lookup(&key);
	if (forward)
		forward->flags |= XR_PENDING_CLOSED;
	return answer_rst(ctx, &p, XR_COUNT_killed_reset);
}

#endif
