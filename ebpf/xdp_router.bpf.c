// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The XDP program: entries only. `xdp_router` is what is attached; it takes a packet of
 * an established flow from parse to redirect without a tail call. Everything rarer is a
 * stage of its own (a stack of its own), which parses again: cheaper than carrying state.
 *
 *     established flow ............. rewrite, redirect            (lib/flow.h)
 *     SYN to a service ............. stage_syn: hold, or to its backend; stage_decide
 *     other segment to a service ... stage_segment: promote, orphan
 *     from a backend, pending ...... stage_reply (SYN-ACKs of established flows, too)
 *     answer to a probe ............ stage_probe
 *     ICMP error ................... stage_icmp: about a probe, or a packet of a flow
 *     decided, found by a stage .... stage_forward; stage_bound if it is established, or long
 *     UDP .......................... stage_udp, stage_datagram, stage_udp_reply
 *     fragment ..................... stage_fragment
 *     sent with another length ..... stage_send: in a tunnel, with another VLAN tag
 *     ICMP echo .................... stage_echo
 *     over budget, stateless ....... stage_flood
 *     of a backend that has died ... stage_killed
 *     of a flow of before .......... stage_previous: moved to the table of another size
 *     answered by an ICMP error .... stage_icmp_error
 *     anything else ................ XDP_PASS, untouched
 *
 * Compiled once for each address family (lib/family.h). The IPv4 one is attached, and goes
 * on in the other's xdp_router for IPv6.
 */
#include <linux/bpf.h>

#include "lib/classify.h"
#include "lib/datagram.h"
#include "lib/decide.h"
#include "lib/flow.h"
#include "lib/fragment.h"
#include "lib/icmp_error.h"
#include "lib/killed.h"
#include "lib/previous.h"
#include "lib/probe_answer.h"
#include "lib/reply.h"
#include "lib/segment.h"
#include "lib/send_stage.h"
#include "lib/stateless.h"
#include "lib/udp.h"
#include "lib/udp_reply.h"

XR_SEC int xdp_router(struct xdp_md *ctx)
{
	flow_entry_t *flow;
	struct packet p;
	int result;

	result = parse_entry(ctx, &p);
	if (result != PARSE_TCP)
		return not_tcp(ctx, &p, result);
	flow = flow_table_lookup(&p.key);
	if (!flow)
		return classify_miss(ctx, &p);
	if (!mac_equal(p.eth->h_dest, flow->in_mac) && !is_our_mac(ctx, p.eth))
		return pass(XR_COUNT_pass_other_mac);
	if (p.flags & TCP_SYN) {
		if (flow->direction == XR_DIR_REPLY)
			return go_to_stage(ctx, XR_STAGE_REPLY);
		if (!(p.flags & (TCP_ACK | TCP_RST | TCP_FIN)))
			return go_to_stage(ctx, XR_STAGE_SYN_BOUND);
	}
	return flow_packet(ctx, &p, flow);
}

XR_SEC int stage_syn(struct xdp_md *ctx)
{
	struct syn syn = {.sticky = XR_NO_BACKEND};
	struct packet p;
	int action;

	if (parse_packet(ctx, &p) != PARSE_TCP)
		return XDP_PASS;
	syn.control = control_lookup();
	if (!syn.control)
		return XDP_PASS;
	action = classify_syn(ctx, &p, &syn);
	if (action == SYN_DECIDED)
		return syn.forward ? pending_forward(ctx, &p, syn.forward) : XDP_DROP;
	if (action == SYN_LATER && syn.forward) {
		pending_note_syn(&p, syn.forward, parse_window_scale(ctx, &p));
		return go_to_stage(ctx, XR_STAGE_FORWARD);
	}
	if (action == SYN_FIRST) {
		syn.measured = is_measured(syn.service);
		action = admit(&p, &syn);
	}
	if (action == SYN_FIRST)
		action = may_hold(ctx, &p, &syn);
	if (action == SYN_FIRST) {
		syn.wscale = parse_window_scale(ctx, &p);
		action = first_packet(ctx, &p, &syn);
	}
	if (action == SYN_DECIDE)
		return decide_syn(ctx, &syn);
	if (action == SYN_FLOOD)
		return flood_syn(ctx, &p, syn.service);
	return action == SYN_PASS ? XDP_PASS : XDP_DROP;
}

/* A SYN on an established flow: its own, somebody's guess, or a new connection. */
XR_SEC int stage_syn_bound(struct xdp_md *ctx)
{
	struct control *control;
	flow_entry_t *flow;
	struct packet p;

	if (parse_packet(ctx, &p) != PARSE_TCP)
		return XDP_PASS;
	control = control_lookup();
	if (!control)
		return XDP_PASS;
	flow = flow_table_lookup(&p.key);
	if (flow && syn_of_flow(ctx, &p, flow, control)) {
		if (p.seq != flow->isn)
			flow_note_syn(&p, flow, parse_window_scale(ctx, &p));
		else
			syn_follow_client(ctx, &p, flow);
		return go_to_stage(ctx, XR_STAGE_BOUND);
	}
	return go_to_stage(ctx, XR_STAGE_SYN);
}

XR_SEC int stage_decide(struct xdp_md *ctx)
{
	return decide_stage(ctx);
}

XR_SEC int stage_take_over(struct xdp_md *ctx)
{
	return take_over_stage(ctx);
}

XR_SEC int stage_segment(struct xdp_md *ctx)
{
	return segment_stage(ctx);
}

XR_SEC int stage_reply(struct xdp_md *ctx)
{
	return reply_stage(ctx);
}

XR_SEC int stage_probe(struct xdp_md *ctx)
{
	return probe_stage(ctx);
}

XR_SEC int stage_echo(struct xdp_md *ctx)
{
	return echo_stage(ctx);
}

XR_SEC int stage_flood(struct xdp_md *ctx)
{
	return flood_stage(ctx);
}

XR_SEC int stage_icmp(struct xdp_md *ctx)
{
	return icmp_stage(ctx);
}

XR_SEC int stage_icmp_error(struct xdp_md *ctx)
{
	struct scratch *scratch = scratch_lookup(ctx);
	struct packet p = {}; /* as in stage_decide */

	if (!scratch || !has_ports(parse_packet(ctx, &p)))
		return XDP_DROP;
	return answer_within_budget(ctx, &p, &scratch->icmp_error);
}

XR_SEC int stage_fragment(struct xdp_md *ctx)
{
	return fragment_stage(ctx);
}

XR_SEC int stage_send(struct xdp_md *ctx)
{
	return send_stage(ctx);
}

XR_SEC int stage_bound(struct xdp_md *ctx)
{
	flow_entry_t *flow;
	struct packet p;

	if (parse_packet(ctx, &p) != PARSE_TCP)
		return XDP_PASS;
	flow = flow_table_lookup(&p.key);
	if (!flow) /* it has just been removed */
		return drop(XR_COUNT_orphan_dropped);
	return flow_long_packet(ctx, &p, flow, 0);
}

XR_SEC int stage_forward(struct xdp_md *ctx)
{
	return forward_stage(ctx);
}

XR_SEC int stage_udp(struct xdp_md *ctx)
{
	return udp_stage(ctx);
}

XR_SEC int stage_datagram(struct xdp_md *ctx)
{
	return datagram_stage(ctx);
}

XR_SEC int stage_udp_reply(struct xdp_md *ctx)
{
	return udp_reply_stage(ctx);
}

XR_SEC int stage_killed(struct xdp_md *ctx)
{
	return killed_stage(ctx);
}

XR_SEC int stage_previous(struct xdp_md *ctx)
{
	return previous_stage(ctx);
}
