/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* stage_reply: what comes from a backend while the flow is pending, or when it is over. */
#ifndef XR_REPLY_H
#define XR_REPLY_H

#include "stateless.h"

/* A backend's segment that pending_flows, or flow_table for a SYN, has a flow for. */
static __always_inline int reply_stage(struct xdp_md *ctx)
{
	pending_flow_t *forward = 0, *reply;
	struct control *control;
	flow_entry_t *flow;
	struct rewrite to;
	flow_key_t key;
	struct packet p;
	__u8 wscale = XR_NO_WSCALE;
	__u64 now_ns;
	int flood;

	if (parse_packet(ctx, &p) != PARSE_TCP)
		return XDP_PASS;
	if (p.flags & TCP_SYN)
		wscale = parse_window_scale(ctx, &p);
	now_ns = clock_precise();
	flow_key_of_kind(&p, XR_KIND_REPLY, &key);
	reply = pending_find(&key, &flood);
	if (!reply || (p.flags & TCP_SYN)) {
		flow = flow_table_lookup(&p.key);
		if (flow) {
			if (p.flags & TCP_SYN)
				flow_restart(&p, flow, wscale, now_ns);
			return go_to_stage(ctx, XR_STAGE_BOUND);
		}
		if (!reply && !is_for_nat_port(&p))
			return reply_without_entry(ctx, &p, now_ns);
	}
	if (reply) {
		key.saddr = reply->new_daddr;
		key.daddr = reply->new_saddr;
		key.sport = reply->new_dport;
		key.dport = reply->new_sport;
		key.kind = XR_KIND_FORWARD;
		forward = pending_lookup_in(flood, &key);
	}
	if (!reply || is_port_left(&p, forward, reply))
		return answer_rst(ctx, &p, XR_COUNT_nat_reply_unknown);
	if (is_long(&p, control_lookup())) {
		__u32 mtu = unfit_mtu(ctx, &p, reply->ifindex, handoff_to_client(reply->ifindex));

		if (mtu)
			return too_big(ctx, &p, mtu);
	}
	if (forward && forward->backend == reply->backend)
		pending_answered(ctx, &p, forward, reply, wscale, now_ns);
	control = control_lookup();
	if (control && !(p.flags & TCP_RST) && is_stateless(reply)) {
		extend_stateless(reply->service, control->orphan_window_ns, now_ns, 0);
		extend_flood(control->orphan_window_ns, now_ns); /* it may be there */
	}
	reply->last_seen_ns = now_ns;
	reply->packets++;
	reply->bytes += p.ip_len;
	rewrite_from_pending(&p.key, reply, &to);
	if (takes_no_frames(reply->ifindex))
		return hand_to_kernel(ctx, &p, &to, XR_IF_HANDOFF_REPLY);
	return send_to_client(ctx, &p, &to, reply->dmac, reply->smac, reply->ifindex, reply->vlan);
}

#endif
