/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * stage_udp: every datagram. One of an established flow goes on at once; nothing is tracked
 * but when it came: UDP has neither numbers nor an end.
 */
#ifndef XR_UDP_H
#define XR_UDP_H

#include "classify.h"
#include "flow.h"

/*
 * Another next hop of the client's is believed only when nothing has come by the former one for
 * so long, or its interface is gone: a datagram has no number by which to tell its sender from
 * somebody who guesses.
 */
#define UDP_MOVE_NS 1000000000ULL

/* Replies follow the client. 0: from elsewhere, while the client is still heard where it was. */
static __always_inline int udp_follow_client(struct xdp_md *ctx, const struct packet *p,
					     flow_entry_t *flow, const struct control *control,
					     void *former)
{
	flow_entry_t *peer;

	if (came_as_ever(ctx, p, flow))
		return 1;
	if (interfaces_lookup(flow->ifindex) &&
	    (!control || !older_than(flow->last_seen_ns, UDP_MOVE_NS, control->heartbeat_ns)))
		return 0;
	peer = is_one_sided(flow) ? flow : peer_in(former, &p->key, flow);
	if (peer)
		client_moves(ctx, p, flow, peer);
	return 1;
}

/* The frame has been found to be for us. `former`: as of peer_in(). */
static __always_inline int udp_flow_packet(struct xdp_md *ctx, struct packet *p, flow_entry_t *flow,
					   void *former)
{
	struct control *control = control_lookup();
	int forward = flow->direction == XR_DIR_FORWARD;
	struct rewrite to = {
		.saddr = flow->new_saddr,
		.daddr = flow->new_daddr,
		.sport = flow->new_sport,
		.dport = flow->new_dport,
		.l3_delta = flow->l3_delta,
		.l4_delta = flow->l4_delta,
		.udp = 1,
	};

	if (is_long(p, control)) {
		struct backend *backend = forward ? backends_lookup(flow->backend) : 0;
		__u32 mtu = forward ? unfit_mtu_to(ctx, p, backend)
				    : unfit_mtu(ctx, p, flow->ifindex,
						handoff_to_client(flow->ifindex));

		if (mtu)
			return too_big(ctx, p, mtu);
	}
	if (p->payload && !flow->first_data_us) {
		flow->first_data_us = elapsed_us(flow->seen_ns, clock_precise());
		if (!forward)
			sign_served(flow->backend);
	}
	if (forward) {
		/* what comes from elsewhere is counted, and keeps nothing alive */
		flow_account(p, flow,
			     udp_follow_client(ctx, p, flow, control, former) ? control : 0);
		return send_to_backend(ctx, p, &to, flow->backend);
	}
	flow_account(p, flow, control);
	if (control && (control->flags & XR_CONTROL_NO_XMIT) && takes_no_frames(flow->ifindex))
		return hand_to_kernel(ctx, p, &to, XR_IF_HANDOFF_REPLY);
	return send_to_client(ctx, p, &to, flow->dmac, flow->smac, flow->ifindex,
			      flow->flags & XR_FLOW_STAGE ? flow->vlan : XR_VLAN_KEEP);
}

/* Whose is a datagram for us that no established flow owns? */
static __always_inline int udp_new(struct xdp_md *ctx, const struct packet *p)
{
	struct control *control = control_lookup();
	struct endpoint_key key;
	struct service *service;
	struct backend_ref *ref;
	int is_client;

	service_key_of(p, &key);
	is_client = may_be_client(p->key.saddr);
	service = services_lookup(&key);
	if (is_client && unless_left_out(service))
		return go_to_stage(ctx, XR_STAGE_DATAGRAM);
	if (control && is_probe_datagram(p, control))
		return go_to_stage(ctx, XR_STAGE_PROBE);
	ref = backend_of_source(p, control);
	/* last, as in classify_new() */
	if (is_client && !service && has_ranges(control) && !is_to_nat_port(p, control, ref) &&
	    service_in_ranges(p))
		return go_to_stage(ctx, XR_STAGE_DATAGRAM);
	if (!ref)
		return pass(XR_COUNT_pass_not_service);
	stages_call(ctx, XR_STAGE_UDP_REPLY);
	return pass(XR_COUNT_tail_call_missed); /* maybe not ours: never dropped unseen */
}

/* As classify_miss(). */
static __always_inline int udp_miss(struct xdp_md *ctx, const struct packet *p)
{
	if (__builtin_expect(previous_table() != 0, 0))
		stages_call(ctx, XR_STAGE_PREVIOUS);
	if (!is_our_mac(ctx, p->eth))
		return pass(XR_COUNT_pass_other_mac);
	return udp_new(ctx, p);
}

static __always_inline int udp_stage(struct xdp_md *ctx)
{
	flow_entry_t *flow;
	struct packet p;

	if (parse_packet(ctx, &p) != PARSE_UDP)
		return XDP_PASS;
	flow = flow_table_lookup(&p.key);
	if (!flow)
		return udp_miss(ctx, &p);
	if (!mac_equal(p.eth->h_dest, flow->in_mac) && !is_our_mac(ctx, p.eth))
		return pass(XR_COUNT_pass_other_mac);
	return udp_flow_packet(ctx, &p, flow, 0);
}

#endif
