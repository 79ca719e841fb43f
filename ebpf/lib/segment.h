/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* stage_segment: a segment of a service without an established flow, other than a SYN. */
#ifndef XR_SEGMENT_H
#define XR_SEGMENT_H

#include "choice.h"
#include "one_sided_promote.h"
#include "pending.h"
#include "syn.h"

/* A segment without a binding, in the direction client to service only. */
static __always_inline int orphan(struct xdp_md *ctx, const struct packet *p,
				  const struct service *service, pending_flow_t *forward,
				  __u64 now_ns)
{
	struct control *control = control_lookup();
	pending_flow_t *seen;
	flow_key_t key;

	int stateless = (service->flags & XR_SERVICE_STATELESS) &&
			service_is_stateless(service->id, now_ns);

	/* Only who forwards without entries has to bring the client's RST to the backend. */
	if ((p->flags & TCP_RST) && !stateless)
		return drop(XR_COUNT_orphan_dropped);
	if (is_denied(p, service))
		return drop(XR_COUNT_source_denied);
	/* With fullnat the connection's port is lost, and the backend knows it by no other. */
	if (is_fullnat(service) ||
	    (service->orphans != XR_ORPHANS_HASH && !service_is_stateless(service->id, now_ns)))
		return answer_rst(ctx, p, XR_COUNT_orphan_reset);
	flow_key_of_kind(p, XR_KIND_SEEN, &key);
	seen = pending_flows_lookup(&key);
	/* Its SYN is held: not decided by this. A SEEN older than that was left over. */
	if (!forward && seen && control &&
	    !older_than(seen->seen_ns, control->pending_idle_ns, now_ns))
		return drop(XR_COUNT_orphan_dropped);
	if (forward || seen)
		forget_pending(p, forward);
	if (stateless)
		return go_to_stage(ctx, XR_STAGE_FLOOD);
	return go_to_decide(ctx, XR_REASON_ORPHAN, now_ns, now_ns);
}

static __always_inline int segment_stage(struct xdp_md *ctx)
{
	pending_flow_t *forward, *reply;
	struct control *control;
	struct service *service;
	flow_entry_t *flow;
	flow_key_t key;
	struct packet p;
	long result = NOT_PROMOTED;
	int one_sided, flood;
	__u64 now_ns;

	if (parse_packet(ctx, &p) != PARSE_TCP)
		return XDP_PASS;
	control = control_lookup();
	if (!control)
		return XDP_PASS;
	flow_key_of_kind(&p, XR_KIND_FORWARD, &key);
	forward = pending_find(&key, &flood);
	now_ns = clock_precise();
	service = service_of(&p);
	if (!service)
		return pass(XR_COUNT_pass_not_service);
	if (!forward) {
		flow = flow_table_lookup(&p.key); /* another CPU promoted it meanwhile */
		if (flow)
			return go_to_stage(ctx, XR_STAGE_BOUND);
		return orphan(ctx, &p, service, 0, now_ns);
	}
	if (forward->flags & XR_PENDING_REFUSED)
		return go_to_stage(ctx, XR_STAGE_FORWARD);
	reply_key_of(forward, p.key.proto, &key);
	reply = pending_lookup_in(flood, &key);
	if (!reply)
		reply = restore_reply(ctx, &p, forward, &key, now_ns, flood);
	if (!reply || !is_reply_of(&p, reply)) /* replies would go to the tuple's owner */
		return orphan(ctx, &p, service, forward, now_ns);
	one_sided = is_one_sided_pending(&p, forward);
	if (one_sided)
		result = one_sided_segment(ctx, &p, service, forward, reply, control, now_ns);
	else if (may_promote(&p, forward, reply, now_ns))
		result = promote(ctx, &p, service, forward, reply, now_ns);
	if (!result || result == EEXIST_RESULT) {
		flow = flow_table_lookup(&p.key);
		if (flow)
			return go_to_stage(ctx, XR_STAGE_BOUND);
	}
	if (result == E2BIG_RESULT) {
		note_table_full(now_ns);
		extend_stateless(service->id, control->orphan_window_ns, now_ns, 0);
		if (flood_lately()) /* it may be there, and stays */
			extend_flood(control->orphan_window_ns, now_ns);
		if (!is_proven(forward, reply))
			proven_begin(&p, forward, reply);
	}
	if (one_sided)
		return go_to_stage(ctx, XR_STAGE_FORWARD);
	if (is_proven(forward, reply))
		proven_from_client(&p, forward, reply);
	else if ((p.flags & TCP_RST) && p.seq == forward->isn + 1)
		forward->flags |= XR_PENDING_CLOSED;
	return go_to_stage(ctx, XR_STAGE_FORWARD);
}

#endif
