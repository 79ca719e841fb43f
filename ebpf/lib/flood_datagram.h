/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * stage_flood, UDP: datagrams of flows that were decided because there are too many. Their
 * entries are in flood_flows, and so push out no flow that is held; stage_datagram, which they
 * come from, knows pending_flows alone. Nor are their QUIC IDs noted: those would push out the
 * connections of others.
 */
#ifndef XR_FLOOD_DATAGRAM_H
#define XR_FLOOD_DATAGRAM_H

#include "datagram_send.h"

/* As forget_pending() of what is known to be here. `reply` may be 0, or another flow's. */
static __always_inline void forget_flood(const struct packet *p, const pending_flow_t *forward,
					 pending_flow_t *reply)
{
	flow_key_t key;

	if (reply && is_reply_of(p, reply)) {
		reply_key_of(forward, IPPROTO_UDP, &key);
		if (reply->flags & XR_PENDING_FULLNAT)
			rest_reply(reply);
		else
			flood_flows_delete(&key);
	}
	flow_key_of_kind(p, XR_KIND_FORWARD, &key);
	flood_flows_delete(&key);
	key.kind = XR_KIND_SEEN;
	pending_flows_delete(&key);
}

static __always_inline int flood_datagram(struct xdp_md *ctx, struct packet *p)
{
	struct control *control = control_lookup();
	struct service *service = service_of(p);
	struct datagram d = {};
	flow_key_t key;
	__u64 now_ns;

	if (!control || !service)
		return pass(XR_COUNT_pass_not_service);
	now_ns = clock_precise();
	flow_key_of_kind(p, XR_KIND_FORWARD, &key);
	d.forward = flood_flows_lookup(&key);
	if (!d.forward) /* others have just pushed it out */
		return go_to_stage(ctx, XR_STAGE_DATAGRAM);
	reply_key_of(d.forward, IPPROTO_UDP, &key);
	d.reply = flood_flows_lookup(&key);
	if (!d.reply) /* pushed out; begun anew, the flow may go elsewhere when the flood is over */
		d.reply = restore_reply(ctx, p, d.forward, &key, now_ns, 1);
	/* The tuple is another flow's by now, or this one is over: it begins anew. */
	if (!d.reply || !is_reply_of(p, d.reply) ||
	    pending_is_over(d.forward, d.reply, IPPROTO_UDP, control, now_ns)) {
		forget_flood(p, d.forward, d.reply);
		return go_to_stage(ctx, XR_STAGE_DATAGRAM);
	}
	/* There is no end to a flow of UDP but silence: so long it is to be found. */
	extend_flood(control->udp_idle_ns, now_ns);
	if (promote_datagram(ctx, p, &d, service, control, now_ns))
		return go_to_stage(ctx, XR_STAGE_UDP);
	return send_datagram(ctx, p, &d, control, now_ns);
}

#endif
