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
 *     longer than some MTU ......... stage_long
 *     answered by an ICMP error .... stage_icmp_error
 *     anything else ................ XDP_PASS, untouched
 */
#include <linux/bpf.h>

#include "abi.h"
#include "lib/maps.h"
#include "lib/stats.h"
#include "lib/clock.h"
#include "lib/parse.h"
#include "lib/csum.h"
#include "lib/send.h"
#include "lib/events.h"
#include "lib/flow.h"
#include "lib/binding.h"
#include "lib/promote.h"
#include "lib/budget.h"
#include "lib/syn.h"
#include "lib/pending.h"
#include "lib/probe.h"
#include "lib/icmp.h"
#include "lib/icmp_error.h"

/* Is the frame addressed to this interface, or to a virtual MAC of ours? */
static __always_inline int is_our_mac(struct xdp_md *ctx, const struct ethhdr *eth)
{
	struct interface *interface = interfaces_lookup(ctx->ingress_ifindex);

	if (!interface)
		return 0;
	if (mac_equal(eth->h_dest, interface->mac))
		return 1;
	return (interface->flags & XR_IF_VIRTUAL_MAC) &&
	       mac_equal(eth->h_dest, interface->virtual_mac);
}

static __always_inline struct backend_ref *backend_of_source(const struct packet *p)
{
	struct endpoint_key key = {
		.addr = p->key.saddr,
		.port = p->key.sport,
		.proto = p->key.proto,
	};

	return backend_index_lookup(&key);
}

/* A packet that no established flow owns. */
static __always_inline int classify_miss(struct xdp_md *ctx, const struct packet *p)
{
	struct endpoint_key key;
	struct backend_ref *ref;
	struct control *control;

	if (!is_our_mac(ctx, p->eth))
		return pass(XR_COUNT_pass_other_mac);
	service_key_of(p, &key);
	if (services_lookup(&key)) {
		if ((p->flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN)
			return go_to_stage(ctx, XR_STAGE_SYN);
		return go_to_stage(ctx, XR_STAGE_SEGMENT);
	}
	ref = backend_of_source(p);
	if (!ref)
		return pass(XR_COUNT_pass_not_service);
	control = control_lookup();
	if (control && is_probe_port(control, p->key.dport)) {
		struct backend *backend = backends_lookup(ref->backend);

		if (backend && backend->probe_addr == p->key.daddr)
			return go_to_stage(ctx, XR_STAGE_PROBE);
	}
	stages_call(ctx, XR_STAGE_REPLY);
	return pass(XR_COUNT_tail_call_missed); /* maybe not ours: never dropped unseen */
}

/* The first fragment of service traffic; later ones have no ports and pass. */
static __always_inline int fragment(struct xdp_md *ctx, const struct packet *p)
{
	struct flow_key key = p->key;
	struct endpoint_key service;

	if (!is_our_mac(ctx, p->eth))
		return pass(XR_COUNT_pass_other_mac);
	service_key_of(p, &service);
	if (services_lookup(&service) || flow_table_lookup(&key))
		return drop(XR_COUNT_fragment_dropped);
	key.kind = XR_KIND_REPLY; /* one without a place in flow_table may last, see lib/proven.h */
	if (pending_flows_lookup(&key))
		return drop(XR_COUNT_fragment_dropped);
	return pass(XR_COUNT_pass_fragment);
}

static __always_inline int not_tcp(struct xdp_md *ctx, const struct packet *p, int result)
{
	switch (result) {
	case PARSE_ICMP:
		if (!is_icmp_error(ctx, p) || !is_our_mac(ctx, p->eth))
			return pass(XR_COUNT_pass_not_tcp);
		stages_call(ctx, XR_STAGE_ICMP);
		count(XR_COUNT_tail_call_missed);
		return XDP_PASS;
	case PARSE_FRAGMENT_FIRST:
		return fragment(ctx, p);
	case PARSE_FRAGMENT_LATER:
		return pass(XR_COUNT_pass_fragment);
	case PARSE_NOT_IPV4:
		return pass(XR_COUNT_pass_not_ipv4);
	case PARSE_NOT_TCP:
		return pass(XR_COUNT_pass_not_tcp);
	default:
		return pass(XR_COUNT_pass_malformed);
	}
}

XR_SEC int xdp_router(struct xdp_md *ctx)
{
	struct flow_entry *flow;
	struct packet p;
	int result;

	result = parse_packet(ctx, &p);
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
	struct syn syn = {};
	struct packet p;
	int action;

	if (parse_packet(ctx, &p) != PARSE_TCP)
		return XDP_PASS;
	syn.control = control_lookup();
	if (!syn.control)
		return XDP_PASS;
	action = classify_syn(ctx, &p, &syn);
	if (action == SYN_FIRST || action == SYN_DECIDE || action == SYN_LATER)
		syn.wscale = parse_window_scale(ctx, &p);
	if (action == SYN_LATER && syn.forward)
		pending_note_syn(&p, syn.forward, syn.wscale);
	if (action == SYN_DECIDED || action == SYN_LATER)
		return syn.forward ? pending_forward(ctx, &p, syn.forward) : XDP_DROP;
	if (action == SYN_FIRST)
		action = first_packet(ctx, &p, &syn);
	if (action == SYN_DECIDE)
		return go_to_decide(ctx, syn.reason, syn.wscale, syn.held_ns, syn.now_ns);
	return action == SYN_PASS ? XDP_PASS : XDP_DROP;
}

/* A SYN on an established flow: its own, somebody's guess, or a new connection. */
XR_SEC int stage_syn_bound(struct xdp_md *ctx)
{
	struct control *control;
	struct flow_entry *flow;
	struct packet p;

	if (parse_packet(ctx, &p) != PARSE_TCP)
		return XDP_PASS;
	control = control_lookup();
	if (!control)
		return XDP_PASS;
	flow = flow_table_lookup(&p.key);
	if (flow && syn_of_flow(&p, flow, control)) {
		if (p.seq != flow->isn)
			flow_note_syn(&p, flow, parse_window_scale(ctx, &p));
		else
			syn_follow_client(ctx, &p, flow);
		return flow_packet(ctx, &p, flow);
	}
	return go_to_stage(ctx, XR_STAGE_SYN);
}

/* XDP decides by itself, in this pass: nobody else will, or not in time. */
XR_SEC int stage_decide(struct xdp_md *ctx)
{
	struct scratch *scratch = scratch_lookup();
	struct pending_flow *forward;
	struct endpoint_key service_key;
	struct service *service;
	struct control *control;
	struct bind bind = {};
	struct flow_key key;
	struct packet p;
	int result;

	if (parse_packet(ctx, &p) != PARSE_TCP || !scratch)
		return XDP_PASS;
	service_key_of(&p, &service_key);
	service = services_lookup(&service_key);
	if (!service)
		return pass(XR_COUNT_pass_not_service);
	bind.seen_ns = scratch->decide.held_ns;
	bind.now_ns = scratch->decide.now_ns;
	bind.reason = scratch->decide.reason;
	bind.wscale = scratch->decide.wscale;
	bind.take_over = scratch->decide.take_over;
	control = control_lookup();
	if (control && is_one_of_many(bind.reason) && bind.reason != XR_REASON_TABLE_FULL)
		extend_stateless(service->id, control->pending_idle_ns, bind.now_ns);
	result = decide(ctx, &p, service, &scratch->decide, &bind);
	flow_key_of_kind(&p, XR_KIND_FORWARD, &key);
	forward = pending_flows_lookup(&key); /* ours, or the daemon's, which came meanwhile */
	if (!forward && may_choose_again(&scratch->decide, result))
		return go_to_stage(ctx, XR_STAGE_DECIDE);
	if (!forward && result == BIND_FAILED) {
		flow_key_of_kind(&p, XR_KIND_SEEN, &key);
		pending_flows_delete(&key); /* the client may try again from the same port */
		return answer_rst(ctx, &p, XR_COUNT_refused_no_backend);
	}
	if (!forward) /* evicted at once: newer ones fill the table */
		return drop(XR_COUNT_pending_insert_failed);
	/* the daemon still holds the frame */
	if (bind.reason == XR_REASON_DEADLINE && result == BIND_DONE)
		flow_event_submit(ctx, &p, XR_EVENT_XDP_DECIDED, forward, 0, bind.now_ns);
	if (bind.reason == XR_REASON_ORPHAN)
		count(XR_COUNT_orphan_hashed);
	return pending_forward(ctx, &p, forward);
}

/* A segment without a binding, in the direction client to service only. */
static __always_inline int orphan(struct xdp_md *ctx, const struct packet *p,
				  const struct service *service, struct pending_flow *forward,
				  __u64 now_ns)
{
	struct control *control = control_lookup();
	struct pending_flow *seen;
	struct flow_key key;

	if (p->flags & TCP_RST)
		return drop(XR_COUNT_orphan_dropped);
	if (service->orphans != XR_ORPHANS_HASH && !service_is_stateless(service->id, now_ns))
		return answer_rst(ctx, p, XR_COUNT_orphan_reset);
	flow_key_of_kind(p, XR_KIND_SEEN, &key);
	seen = pending_flows_lookup(&key);
	/* Its SYN is held: not decided by this. A SEEN older than that was left over. */
	if (!forward && seen && control &&
	    !older_than(seen->seen_ns, control->pending_idle_ns, now_ns))
		return drop(XR_COUNT_orphan_dropped);
	if (forward || seen)
		forget_pending(p, forward);
	return go_to_decide(ctx, XR_REASON_ORPHAN, XR_NO_WSCALE, now_ns, now_ns);
}

XR_SEC int stage_segment(struct xdp_md *ctx)
{
	struct pending_flow *forward, *reply;
	struct endpoint_key service_key;
	struct control *control;
	struct service *service;
	struct flow_entry *flow;
	struct flow_key key;
	struct packet p;
	__u64 now_ns;

	if (parse_packet(ctx, &p) != PARSE_TCP)
		return XDP_PASS;
	flow_key_of_kind(&p, XR_KIND_FORWARD, &key);
	forward = pending_flows_lookup(&key);
	now_ns = clock_precise();
	service_key_of(&p, &service_key);
	service = services_lookup(&service_key);
	if (!service)
		return pass(XR_COUNT_pass_not_service);
	if (!forward) {
		flow = flow_table_lookup(&p.key); /* another CPU promoted it meanwhile */
		if (flow)
			return flow_packet(ctx, &p, flow);
		return orphan(ctx, &p, service, 0, now_ns);
	}
	if (forward->flags & XR_PENDING_REFUSED)
		return pending_forward(ctx, &p, forward);
	reply_key_of(forward, &key);
	reply = pending_flows_lookup(&key);
	if (!reply)
		reply = restore_reply(ctx, &p, forward, &key, now_ns);
	if (!reply || !is_reply_of(&p, reply)) /* replies would go to the tuple's owner */
		return orphan(ctx, &p, service, forward, now_ns);
	if (may_promote(&p, forward, reply, now_ns)) {
		long result = promote(ctx, &p, forward, reply, now_ns);

		if (!result || result == EEXIST_RESULT) {
			flow = flow_table_lookup(&p.key);
			if (flow)
				return flow_packet(ctx, &p, flow);
		}
		control = control_lookup();
		if (result == E2BIG_RESULT && control) {
			note_table_full(now_ns);
			extend_stateless(service->id, control->orphan_window_ns, now_ns);
			if (!is_proven(forward, reply))
				proven_begin(&p, forward, reply);
		}
	}
	if (is_proven(forward, reply))
		proven_from_client(&p, forward, reply);
	else if ((p.flags & TCP_RST) && p.seq == forward->isn + 1)
		forward->flags |= XR_PENDING_CLOSED;
	return pending_forward(ctx, &p, forward);
}

/* A backend's segment that pending_flows, or flow_table for a SYN, has a flow for. */
XR_SEC int stage_reply(struct xdp_md *ctx)
{
	struct pending_flow *forward, *reply;
	struct control *control;
	struct flow_entry *flow;
	struct rewrite to;
	struct flow_key key;
	struct packet p;
	__u8 wscale = XR_NO_WSCALE;
	__u64 now_ns;

	if (parse_packet(ctx, &p) != PARSE_TCP)
		return XDP_PASS;
	if (p.flags & TCP_SYN)
		wscale = parse_window_scale(ctx, &p);
	now_ns = clock_precise();
	flow_key_of_kind(&p, XR_KIND_REPLY, &key);
	reply = pending_flows_lookup(&key);
	if (!reply || (p.flags & TCP_SYN)) {
		flow = flow_table_lookup(&p.key);
		if (flow) {
			if (p.flags & TCP_SYN)
				flow_restart(&p, flow, wscale, now_ns);
			return flow_packet(ctx, &p, flow);
		}
		if (!reply)
			return pass(XR_COUNT_pass_not_service);
	}
	if (is_long(&p, control_lookup())) {
		__u32 mtu = unfit_mtu(ctx, &p, reply->ifindex, handoff_to_client(reply->ifindex));

		if (mtu)
			return too_big(ctx, &p, mtu);
	}
	key.saddr = reply->new_daddr;
	key.daddr = reply->new_saddr;
	key.sport = reply->new_dport;
	key.dport = reply->new_sport;
	key.kind = XR_KIND_FORWARD;
	forward = pending_flows_lookup(&key);
	if (forward && forward->backend == reply->backend)
		pending_answered(ctx, &p, forward, reply, wscale, now_ns);
	control = control_lookup();
	if (control && !(p.flags & TCP_RST) && is_stateless(reply))
		extend_stateless(reply->service, control->orphan_window_ns, now_ns);
	reply->last_seen_ns = now_ns;
	reply->packets++;
	reply->bytes += p.ip_len;
	rewrite_from_pending(&p.key, reply, &to);
	if (takes_no_frames(reply->ifindex))
		return hand_to_kernel(ctx, &p, &to, XR_IF_HANDOFF_REPLY);
	return send_to_client(ctx, &p, &to, reply->dmac, reply->smac, reply->ifindex);
}

XR_SEC int stage_probe(struct xdp_md *ctx)
{
	struct control *control;
	struct packet p;
	__u32 seq;

	if (parse_packet(ctx, &p) != PARSE_TCP)
		return XDP_PASS;
	control = control_lookup();
	if (!control)
		return XDP_PASS;
	seq = p.ack - 1;
	if (!(p.flags & TCP_ACK) || !(p.flags & (TCP_SYN | TCP_RST)) ||
	    !is_probe_seq(control, p.key.saddr, p.key.sport, p.key.dport, p.key.daddr, seq))
		return pass(XR_COUNT_probe_unverified);
	if (p.flags & TCP_RST) {
		probe_reply_submit(ctx, &p, XR_PROBE_RST, seq);
		return drop(XR_COUNT_probe_rst);
	}
	probe_reply_submit(ctx, &p, XR_PROBE_SYNACK, seq);
	if (takes_no_frames(ctx->ingress_ifindex)) /* the host's own stack answers it by RST */
		return pass(XR_COUNT_probe_synack);
	return answer_rst(ctx, &p, XR_COUNT_probe_synack);
}

/* Is it about one of our probes? A probe is sent without options. */
static __always_inline int is_about_probe(const struct quote *quote, const struct control *control)
{
	struct endpoint_key key = {
		.addr = quote->key.daddr,
		.port = quote->key.dport,
		.proto = IPPROTO_TCP,
	};
	struct backend *backend;
	struct backend_ref *ref;

	if (quote->ip->ihl != 5 || !is_probe_port(control, quote->key.sport))
		return 0;
	ref = backend_index_lookup(&key);
	if (!ref)
		return 0;
	backend = backends_lookup(ref->backend);
	return backend && backend->probe_addr == quote->key.saddr &&
	       is_probe_seq(control, quote->key.daddr, quote->key.dport, quote->key.sport,
			    quote->key.saddr, xr_ntohl(quote->tcp->seq));
}

/*
 * Destination unreachable about a probe: that candidate loses at once, and the packet
 * passes. An error about a flow's packet goes to the side that sent it.
 */
XR_SEC int stage_icmp(struct xdp_md *ctx)
{
	struct control *control;
	struct quote quote = {};
	struct packet p;

	if (parse_packet(ctx, &p) != PARSE_ICMP)
		return XDP_PASS;
	control = control_lookup();
	if (!control || !is_icmp_error(ctx, &p) || !parse_quote(ctx, &p, &quote))
		return pass(XR_COUNT_pass_not_tcp);
	if (quote.icmp->type != ICMP_DEST_UNREACH || quote.icmp->code == ICMP_FRAG_NEEDED ||
	    !is_about_probe(&quote, control))
		return translate_error(ctx, &p, &quote);
	p.key = quote.key; /* as an answer of the backend's would have it */
	p.key.saddr = quote.key.daddr;
	p.key.daddr = quote.key.saddr;
	p.key.sport = quote.key.dport;
	p.key.dport = quote.key.sport;
	probe_reply_submit(ctx, &p, XR_PROBE_UNREACHABLE, xr_ntohl(quote.tcp->seq));
	return pass(XR_COUNT_probe_unreachable);
}

XR_SEC int stage_icmp_error(struct xdp_md *ctx)
{
	struct scratch *scratch = scratch_lookup();
	struct packet p;

	if (!scratch || parse_packet(ctx, &p) != PARSE_TCP)
		return XDP_DROP;
	return answer_within_budget(ctx, &p, &scratch->icmp_error);
}

XR_SEC int stage_long(struct xdp_md *ctx)
{
	struct flow_entry *flow;
	struct packet p;

	if (parse_packet(ctx, &p) != PARSE_TCP)
		return XDP_PASS;
	flow = flow_table_lookup(&p.key);
	if (!flow) /* it has just been removed */
		return drop(XR_COUNT_orphan_dropped);
	return flow_long_packet(ctx, &p, flow);
}
