/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* stage_udp_reply: a backend's datagram while the flow is pending. */
#ifndef XR_UDP_REPLY_H
#define XR_UDP_REPLY_H

#include "pending.h"

static __always_inline int udp_reply_stage(struct xdp_md *ctx)
{
	struct control *control = control_lookup();
	pending_flow_t *forward, *reply;
	struct backend *backend;
	struct rewrite to;
	flow_key_t key;
	struct packet p;
	__u64 now_ns;
	int flood;

	if (parse_packet(ctx, &p) != PARSE_UDP)
		return XDP_PASS;
	flow_key_of_kind(&p, XR_KIND_REPLY, &key);
	reply = pending_find(&key, &flood);
	if (!reply) {
		if (flow_table_lookup(&p.key)) /* another CPU has promoted it meanwhile */
			return go_to_stage(ctx, XR_STAGE_UDP);
		if (is_for_nat_port(
			    &p)) /* nobody's any more; the kernel has nothing to say to it */
			return drop(XR_COUNT_nat_reply_unknown);
		return pass(XR_COUNT_pass_not_service);
	}
	key.saddr = reply->new_daddr;
	key.daddr = reply->new_saddr;
	key.sport = reply->new_dport;
	key.dport = reply->new_sport;
	key.kind = XR_KIND_FORWARD;
	forward = pending_lookup(&key);
	if (is_port_left(&p, forward, reply))
		return drop(XR_COUNT_nat_reply_unknown);
	if (is_long(&p, control)) {
		__u32 mtu = unfit_mtu(ctx, &p, reply->ifindex, handoff_to_client(reply->ifindex));

		if (mtu)
			return too_big(ctx, &p, mtu);
	}
	now_ns = clock_precise();
	if (flood && control) /* as long as it may be silent, see flood_datagram() */
		extend_flood(control->udp_idle_ns, now_ns);
	backend = backends_lookup(reply->backend);
	/* Only what comes by the backend's own way counts as its answer, see promote_datagram(). */
	if (backend && backend->ifindex == ctx->ingress_ifindex) {
		if (!reply->packets) {
			reply->synack_us = elapsed_us(reply->seen_ns, now_ns);
			if (forward)
				load_answered_first(forward, reply, now_ns);
		}
		reply->packets++;
	}
	reply->last_seen_ns = now_ns;
	reply->bytes += p.ip_len;
	rewrite_from_pending(&p.key, reply, &to);
	to.udp = 1;
	if (takes_no_frames(reply->ifindex))
		return hand_to_kernel(ctx, &p, &to, XR_IF_HANDOFF_REPLY);
	return send_to_client(ctx, &p, &to, reply->dmac, reply->smac, reply->ifindex, reply->vlan);
}

#endif
