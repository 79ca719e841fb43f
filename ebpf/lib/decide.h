/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* stage_decide: XDP decides by itself. */
#ifndef XR_DECIDE_H
#define XR_DECIDE_H

#include "choice.h"
#include "pending.h"
#include "syn.h"

/* A reply tuple that is taken may be had, if its flow is over. Far too much for stage_decide. */
static __always_inline int take_over_stage(struct xdp_md *ctx)
{
	struct scratch *scratch = scratch_lookup(ctx);
	struct control *control = control_lookup();
	struct packet p = {};

	if (!scratch || !control || !has_ports(parse_either(ctx, &p)))
		return XDP_PASS;
	free_reply_tuple(&p, &scratch->keys[0], control, scratch->decide.now_ns);
	return go_to_stage(ctx, XR_STAGE_DECIDE);
}

/* Nobody is to have the flow, or can. */
static __always_inline int refuse(struct xdp_md *ctx, const struct packet *p, __u8 reason)
{
	__u32 counter = reason == DECIDE_REFUSAL ? XR_COUNT_flow_limit_reached
						 : XR_COUNT_refused_no_backend;
	flow_key_t key;

	flow_key_of_kind(p, XR_KIND_SEEN, &key);
	pending_flows_delete(&key); /* the client may try again from the same port */
	if (p->key.proto == IPPROTO_UDP)
		return answer_unreachable(ctx, counter);
	if (!tcp_is_there(ctx, p))
		return XDP_DROP;
	return answer_rst(ctx, p, counter);
}

/*
 * Window scale of a SYN, XR_NO_WSCALE of anything else. By a pointer and flags of its own: what is
 * found out about them here the verifier would have to keep apart in all that follows.
 */
static __always_inline __u8 syn_window_scale(struct xdp_md *ctx, const struct packet *p)
{
	void *data = (void *)(long)ctx->data;
	__u64 zero = unknown_zero(data);
	__u64 l4_off = p->l4 - data + zero;
	struct packet syn;

	if (((p->flags + zero) & (TCP_SYN | TCP_ACK)) != TCP_SYN || l4_off > L4_OFF_MAX)
		return XR_NO_WSCALE;
	syn.l4 = data + l4_off;
	return tcp_is_there(ctx, &syn) ? parse_window_scale(ctx, &syn) : XR_NO_WSCALE;
}

/* Tells the daemon, with what was compared if that decided. */
static __always_inline void decision_submit(struct xdp_md *ctx, const struct packet *p,
					    struct scratch *scratch)
{
	const struct decide_state *state = &scratch->decide;
	struct event_compared *event;

	if (state->mode != XR_MODE_INLINE || state->compared.backend[0] == XR_NO_BACKEND) {
		flow_event_submit(ctx, p, XR_EVENT_XDP_DECIDED, &scratch->pending, 0,
				  state->now_ns);
		return;
	}
	event = events_reserve_compared();
	if (!event) {
		count(XR_COUNT_event_lost);
		return;
	}
	flow_event_fill(&event->head, ctx, p, XR_EVENT_XDP_DECIDED, &scratch->pending, 0,
			state->now_ns);
	event->head.frame_len = sizeof(event->compared);
	event->compared = state->compared;
	events_submit(event);
}

/* XDP decides by itself, in this pass: nobody else will, or not in time. */
static __always_inline int decide_stage(struct xdp_md *ctx)
{
	struct scratch *scratch = scratch_lookup(ctx);
	struct control *control = control_lookup();
	struct decide_state *state;
	struct service *service;
	flow_key_t key;
	struct packet p = {}; /* else clang spills, for two good results, what was never set */
	int result;

	if (!has_ports(parse_either(ctx, &p)) || !scratch || !control)
		return XDP_PASS;
	state = &scratch->decide;
	state->wscale = syn_window_scale(ctx, &p);
	service = service_of(&p);
	if (!service)
		return pass(XR_COUNT_pass_not_service);
	state->flood |= belongs_to_flood(state->reason);
	/* whichever table it goes into: in the next flood the left-over would hide it */
	flow_key_of_kind(&p, XR_KIND_FORWARD, &key);
	forget_last_flood(&key);
	if (state->flood)
		extend_flood(control->pending_idle_ns, state->now_ns);
	forget_values();
	result = decide(ctx, &p, service, scratch);
	if (result == BIND_TAKE_OVER)
		return go_to_stage(ctx, XR_STAGE_TAKE_OVER);
	if (result == BIND_DONE) {
		/* the daemon holds a frame of before, or has an event to spare */
		if (state->held_ns != state->now_ns || state->tell)
			decision_submit(ctx, &p, scratch);
	} else if (!pending_lookup(&key)) { /* else the daemon's, which came meanwhile */
		if (may_choose_again(state, result))
			return go_to_stage(ctx, XR_STAGE_DECIDE);
		if (result == BIND_FAILED)
			return refuse(ctx, &p, state->reason);
		return drop(XR_COUNT_pending_insert_failed); /* evicted at once */
	}
	if (state->reason == XR_REASON_ORPHAN)
		count(XR_COUNT_orphan_hashed);
	/* which find the decision, and send the packet */
	if (p.key.proto == IPPROTO_UDP)
		return go_to_stage(ctx, state->flood ? XR_STAGE_FLOOD : XR_STAGE_DATAGRAM);
	return go_to_stage(ctx, XR_STAGE_FORWARD);
}

#endif
