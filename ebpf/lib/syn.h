/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What becomes of a SYN to a service: held, a retransmit, or somebody has to decide. */
#ifndef XR_SYN_H
#define XR_SYN_H

#include "binding.h"
#include "budget.h"
#include "pressure.h"
#include "restart.h"

static __always_inline void service_key_of(const struct packet *p, struct endpoint_key *key)
{
	key->addr = p->key.daddr;
	key->port = p->key.dport;
	key->proto = p->key.proto;
	key->pad = 0;
}

/*
 * What becomes of a SYN. One closed set, so that each thing that can be done about it
 * stands (and is verified) once in the program.
 */
enum syn_action {
	SYN_PASS,
	SYN_DROP,    /* counted where the reason is known */
	SYN_FIRST,   /* nobody knows the flow: hold it and ask the daemon */
	SYN_DECIDED, /* to the backend that FORWARD names */
	SYN_LATER,   /* likewise, and noted: its SYN-ACK would tell of a new connection */
	SYN_DECIDE,  /* XDP decides by itself, in this pass */
};

struct syn {
	const struct control *control;
	struct service *service;
	struct pending_flow *forward;
	__u64 now_ns;  /* SYN_FIRST, SYN_DECIDE: precise */
	__u64 held_ns; /* SYN_FIRST, SYN_DECIDE: since when the first packet waits */
	__u8 reason;   /* SYN_DECIDE: enum xr_reason */
	__u8 wscale;
};

static __always_inline int drop_syn(__u32 counter)
{
	count(counter);
	return SYN_DROP;
}

static __always_inline int decide_because(struct syn *syn, __u8 reason, __u32 counter)
{
	count(counter);
	syn->reason = reason;
	return SYN_DECIDE;
}

/* A first packet: hold it and ask the daemon, or say why not. */
static __always_inline int first_packet(struct xdp_md *ctx, const struct packet *p, struct syn *syn)
{
	const struct control *control = syn->control;
	const struct service *service = syn->service;
	struct scratch *scratch = scratch_lookup();
	__u64 now_ns = syn->now_ns;
	struct pending_flow *seen;
	struct flow_key key;
	__u32 refused;
	long result;

	if (p->ip->ttl <= 1) { /* no use in asking: it ends here */
		answer_ttl_exceeded(ctx);
		return SYN_DROP;
	}
	if (table_is_full(now_ns))
		return decide_because(syn, XR_REASON_TABLE_FULL, XR_COUNT_table_full);
	if (heartbeat_is_stale(control, now_ns))
		return decide_because(syn, XR_REASON_NO_HEARTBEAT, XR_COUNT_heartbeat_stale);
	if (p->frame_len > XR_FRAME_LARGE)
		return decide_because(syn, XR_REASON_FRAME_TOO_LONG, XR_COUNT_frame_too_long);
	refused = event_pay(p, service, control, now_ns);
	if (refused != XR_COUNTER_MAX)
		return decide_because(
			syn, refused == XR_COUNT_ring_deep ? XR_REASON_BACKLOG : XR_REASON_BUDGET,
			refused);
	if (!scratch)
		return SYN_DROP;
	seen = &scratch->pending;
	__builtin_memset(seen, 0, sizeof(*seen));
	seen->seen_ns = now_ns;
	seen->last_seen_ns = now_ns;
	seen->isn = p->seq;
	seen->backend = XR_NO_BACKEND;
	seen->service = service->id;
	seen->ifindex = ctx->ingress_ifindex;
	flow_key_of_kind(p, XR_KIND_SEEN, &key);
	result = pending_flows_insert(&key, seen);
	if (result == EEXIST_RESULT)
		return drop_syn(XR_COUNT_syn_held_again); /* another CPU was first */
	if (result)
		return drop_syn(XR_COUNT_pending_insert_failed);
	if (first_packet_submit(ctx, p, service, syn->wscale, now_ns))
		return decide_because(syn, XR_REASON_RING_FULL, XR_COUNT_ring_full);
	return drop_syn(XR_COUNT_first_packet);
}

/*
 * The SYN-ACK follows the client, whose interface may have been made anew since: nothing else
 * of the client comes before it has that. Only who knows the ISN says so.
 */
static __always_inline void reply_follow_client(struct xdp_md *ctx, const struct packet *p,
						struct pending_flow *reply)
{
	if (reply->ifindex == ctx->ingress_ifindex && mac_equal(p->eth->h_source, reply->dmac))
		return;
	mac_copy(reply->dmac, p->eth->h_source);
	mac_copy(reply->smac, p->eth->h_dest);
	reply->ifindex = ctx->ingress_ifindex;
	count(XR_COUNT_client_moved);
}

/*
 * The ISN rule for a flow that is pending or not known. A SYN with the ISN of the entry is
 * a retransmit: same backend. With another ISN it is a new connection only if the old one
 * is over; else it goes to the bound backend, whose own stack answers it (RFC 5961, 4).
 */
static __always_inline int classify_syn(struct xdp_md *ctx, const struct packet *p, struct syn *syn)
{
	const struct control *control = syn->control;
	struct endpoint_key service_key;
	struct pending_flow *forward, *reply, *seen;
	struct flow_key key;
	int anew = 0;

	flow_key_of_kind(p, XR_KIND_FORWARD, &key);
	forward = pending_flows_lookup(&key);
	syn->forward = forward;
	if (forward) {
		if (forward->flags & XR_PENDING_REFUSED) {
			if (forward->isn == p->seq)
				return SYN_DECIDED;
		} else {
			reply_key_of(forward, &key);
			reply = pending_flows_lookup(&key);
			/* half evicted, or the tuple is another flow's: counts as undecided */
			if (reply && is_reply_of(p, reply)) {
				if (forward->isn == p->seq) {
					if (forward->packets)
						count(XR_COUNT_syn_retransmit);
					reply_follow_client(ctx, p, reply);
					return SYN_DECIDED;
				}
				if (!pending_is_over(forward, reply, control, clock_precise())) {
					count(XR_COUNT_syn_on_live_flow);
					return SYN_LATER;
				}
			}
		}
		anew = 1;
	}

	service_key_of(p, &service_key);
	syn->service = services_lookup(&service_key);
	if (!syn->service) {
		count(XR_COUNT_pass_not_service);
		return SYN_PASS;
	}
	syn->now_ns = clock_precise();
	syn->held_ns = syn->now_ns;
	flow_key_of_kind(p, XR_KIND_SEEN, &key);
	seen = pending_flows_lookup(&key);
	if (seen && !anew) {
		if (seen->isn == p->seq) {
			if (!older_than(seen->seen_ns, syn->service->deadline_ns, syn->now_ns))
				return drop_syn(XR_COUNT_syn_held_again);
			syn->held_ns = seen->seen_ns;
			return decide_because(syn, XR_REASON_DEADLINE, XR_COUNT_deadline_passed);
		}
		if (!older_than(seen->seen_ns, control->pending_idle_ns, syn->now_ns))
			return drop_syn(XR_COUNT_syn_held_again); /* a blind SYN ends no decision */
		anew = 1;
	}
	if (anew) {
		count(XR_COUNT_syn_reopened);
		forget_pending(p, forward);
	}
	return SYN_FIRST;
}

/*
 * The ISN rule for an established flow. Returns 1 when the SYN belongs to it, 0 when it
 * begins a new flow: then nothing of the old one is left.
 */
static __always_inline int syn_of_flow(const struct packet *p, struct flow_entry *flow,
				       const struct control *control)
{
	struct flow_entry *peer = peer_of(&p->key, flow);
	struct flow_key key;

	if (flow->isn == p->seq) {
		count(XR_COUNT_syn_retransmit);
		return 1;
	}
	if (!flow_is_over(flow, peer, control, clock_precise())) {
		count(XR_COUNT_syn_on_live_flow);
		return 1;
	}
	count(XR_COUNT_syn_reopened);
	if (peer) {
		peer_key(flow, &key);
		flow_table_delete(&key);
	}
	flow_key_of_kind(p, XR_KIND_NONE, &key);
	flow_table_delete(&key);
	flow_key_of_kind(p, XR_KIND_FORWARD, &key);
	forget_pending(p, pending_flows_lookup(&key));
	return 0;
}

#endif
