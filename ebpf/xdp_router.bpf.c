// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
/*
 * The XDP program: entries only. `xdp_router` is what is attached; it takes a packet of
 * an established flow from parse to redirect without a tail call. Everything rarer is a
 * stage of its own (a stack of its own), which parses again: cheaper than carrying state.
 *
 *     established flow ............. rewrite, redirect            (lib/flow.h)
 *     SYN to a service ............. stage_syn: hold, or to its backend; stage_decide
 *     other segment to a service ... stage_segment: promote, orphan
 *     from a backend, pending ...... stage_reply
 *     answer to a probe ............ stage_probe
 *     ICMP about a probe ........... stage_icmp
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
#include "lib/probe.h"

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

/* Goes on in a stage; comes back only if the stage is not there. */
static __always_inline int go_to_stage(struct xdp_md *ctx, __u32 stage)
{
	stages_call(ctx, stage);
	return drop(XR_COUNT_tail_call_missed);
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
	return pass(XR_COUNT_pass_fragment);
}

static __always_inline int not_tcp(struct xdp_md *ctx, const struct packet *p, int result)
{
	const struct icmp_header *icmp;

	switch (result) {
	case PARSE_ICMP:
		icmp = (void *)p->ip + sizeof(*p->ip);
		if ((void *)(icmp + 1) > (void *)(long)ctx->data_end || p->ip->ihl != 5 ||
		    icmp->type != ICMP_DEST_UNREACH || !is_our_mac(ctx, p->eth))
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
	if (flow->direction == XR_DIR_FORWARD &&
	    (p.flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN)
		return go_to_stage(ctx, XR_STAGE_SYN_BOUND);
	return flow_packet(ctx, &p, flow);
}

/* Goes on in stage_decide with what it has to know. */
static __always_inline int go_to_decide(struct xdp_md *ctx, __u8 reason, __u8 wscale, __u64 held_ns,
					__u64 now_ns)
{
	struct scratch *scratch = scratch_lookup();

	if (!scratch)
		return XDP_DROP;
	scratch->decide.reason = reason;
	scratch->decide.wscale = wscale;
	scratch->decide.held_ns = held_ns;
	scratch->decide.now_ns = now_ns;
	return go_to_stage(ctx, XR_STAGE_DECIDE);
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
	action = classify_syn(&p, &syn);
	if (action == SYN_DECIDED)
		return syn.forward ? pending_forward(ctx, &p, syn.forward) : XDP_DROP;
	if (action == SYN_FIRST || action == SYN_DECIDE) {
		syn.wscale = parse_window_scale(ctx, &p);
		if (action == SYN_FIRST)
			action = first_packet(ctx, &p, &syn);
	}
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
	if (flow && syn_of_flow(&p, flow, control))
		return flow_packet(ctx, &p, flow);
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
	control = control_lookup();
	if (control && is_one_of_many(bind.reason))
		hash_orphans(service, control, bind.now_ns);
	result = decide(ctx, &p, service, &bind);
	flow_key_of_kind(&p, XR_KIND_FORWARD, &key);
	forward = pending_flows_lookup(&key); /* ours, or the daemon's, which came meanwhile */
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
				  const struct service *service, __u64 now_ns)
{
	struct flow_key key;

	if (p->flags & TCP_RST)
		return drop(XR_COUNT_orphan_dropped);
	if (service->orphans == XR_ORPHANS_HASH || now_ns < service->stateless_until_ns) {
		flow_key_of_kind(p, XR_KIND_SEEN, &key);
		if (pending_flows_lookup(&key)) /* its SYN is held: not decided by this */
			return drop(XR_COUNT_orphan_dropped);
		return go_to_decide(ctx, XR_REASON_ORPHAN, XR_NO_WSCALE, now_ns, now_ns);
	}
	return answer_rst(ctx, p, XR_COUNT_orphan_reset);
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
		return orphan(ctx, &p, service, now_ns);
	}
	if (forward->flags & XR_PENDING_REFUSED)
		return pending_forward(ctx, &p, forward);
	reply_key_of(forward, &key);
	reply = pending_flows_lookup(&key);
	if (reply && is_reply_of(&p, reply) && completes_handshake(&p, forward, reply)) {
		long result = promote(ctx, &p, forward, reply, now_ns);

		if (!result || result == EEXIST_RESULT) {
			flow = flow_table_lookup(&p.key);
			if (flow)
				return flow_packet(ctx, &p, flow);
		}
		control = control_lookup();
		if (result == E2BIG_RESULT && control)
			service->stateless_until_ns = now_ns + control->orphan_window_ns;
	}
	if ((p.flags & TCP_RST) && p.seq == forward->isn + 1)
		forward->flags |= XR_PENDING_CLOSED;
	return pending_forward(ctx, &p, forward);
}

XR_SEC int stage_reply(struct xdp_md *ctx)
{
	struct pending_flow *forward, *reply;
	struct rewrite to;
	struct flow_key key;
	struct packet p;
	__u64 now_ns;

	if (parse_packet(ctx, &p) != PARSE_TCP)
		return XDP_PASS;
	flow_key_of_kind(&p, XR_KIND_REPLY, &key);
	reply = pending_flows_lookup(&key);
	if (!reply) {
		struct flow_entry *flow = flow_table_lookup(&p.key);

		if (flow)
			return flow_packet(ctx, &p, flow);
		return pass(XR_COUNT_pass_not_service);
	}
	now_ns = clock_precise();
	key.saddr = reply->new_daddr;
	key.daddr = reply->new_saddr;
	key.sport = reply->new_dport;
	key.dport = reply->new_sport;
	key.kind = XR_KIND_FORWARD;
	forward = pending_flows_lookup(&key);
	if (forward && (p.flags & TCP_ACK) &&
	    (p.ack == forward->isn + 1 || p.ack == forward->isn + 1 + forward->syn_data)) {
		if (p.flags & TCP_RST) {
			forward->flags |= XR_PENDING_CLOSED; /* refused */
		} else if (p.flags & TCP_SYN) {
			reply->isn = p.seq;
			reply->window = p.window;
			reply->wscale = parse_window_scale(ctx, &p);
			if (!(reply->flags & XR_PENDING_SYNACK))
				reply->synack_us = elapsed_us(reply->seen_ns, now_ns);
			reply->flags |= XR_PENDING_SYNACK;
		}
	}
	reply->last_seen_ns = now_ns;
	reply->packets++;
	reply->bytes += p.ip_len;
	rewrite_from_pending(&p.key, reply, &to);
	return send_to_client(ctx, &p, &to, reply->dmac, reply->smac, reply->ifindex);
}

static __always_inline void probe_reply_submit(struct xdp_md *ctx, const struct packet *p,
					       __u8 answer, __u32 seq)
{
	struct event *event = events_reserve();

	if (!event) {
		count(XR_COUNT_event_lost);
		return;
	}
	event_fill(event, ctx, p, XR_EVENT_PROBE_REPLY, clock_precise());
	event->backend = XR_NO_BACKEND;
	event->detail = answer;
	event->seq = seq;
	events_submit(event);
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
	return answer_rst(ctx, &p, XR_COUNT_probe_synack);
}

/*
 * Destination unreachable about one of our probes: that candidate loses at once. The
 * packet itself passes, as every ICMP does. Only outer headers without options get here,
 * and a probe is sent without any.
 */
XR_SEC int stage_icmp(struct xdp_md *ctx)
{
	void *data_end = (void *)(long)ctx->data_end;
	struct endpoint_key backend_key = {.proto = IPPROTO_TCP};
	struct backend_ref *ref;
	struct control *control;
	struct icmp_header *icmp;
	struct backend *backend;
	struct iphdr *inner;
	struct tcphdr *tcp; /* the first 8 bytes only (RFC 792) */
	struct packet p;
	__u32 seq;

	if (parse_packet(ctx, &p) != PARSE_ICMP)
		return XDP_PASS;
	icmp = (void *)p.ip + sizeof(*p.ip);
	inner = (void *)(icmp + 1);
	tcp = (void *)(inner + 1);
	control = control_lookup();
	if (!control || (void *)tcp + 8 > data_end || inner->ihl != 5 ||
	    inner->protocol != IPPROTO_TCP || icmp->code == ICMP_FRAG_NEEDED)
		return pass(XR_COUNT_pass_not_tcp);
	backend_key.addr = inner->daddr;
	backend_key.port = tcp->dest;
	ref = backend_index_lookup(&backend_key);
	if (!ref || !is_probe_port(control, tcp->source))
		return pass(XR_COUNT_pass_not_tcp);
	backend = backends_lookup(ref->backend);
	seq = xr_ntohl(tcp->seq);
	if (!backend || backend->probe_addr != inner->saddr ||
	    !is_probe_seq(control, inner->daddr, tcp->dest, tcp->source, inner->saddr, seq))
		return pass(XR_COUNT_pass_not_tcp);
	p.key.saddr = inner->daddr;
	p.key.daddr = inner->saddr;
	p.key.sport = tcp->dest;
	p.key.dport = tcp->source;
	p.key.proto = IPPROTO_TCP;
	p.key.kind = XR_KIND_NONE;
	p.key.pad = 0;
	probe_reply_submit(ctx, &p, XR_PROBE_UNREACHABLE, seq);
	return pass(XR_COUNT_probe_unreachable);
}

XR_SEC int stage_icmp_error(struct xdp_md *ctx)
{
	return XDP_DROP;
}

XR_SEC int stage_long(struct xdp_md *ctx)
{
	return XDP_DROP;
}
