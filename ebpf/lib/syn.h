/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What becomes of a SYN to a service: held, a retransmit, or somebody has to decide. */
#ifndef XR_SYN_H
#define XR_SYN_H

#include "choice.h"
#include "admission.h"
#include "budget.h"
#include "pressure.h"
#include "restart.h"
#include "service.h"

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
	SYN_FLOOD,   /* likewise, and leaves no entry */
};

struct syn {
	const struct control *control;
	struct service *service;
	pending_flow_t *forward;
	__u64 now_ns;  /* SYN_FIRST, SYN_DECIDE: precise */
	__u64 held_ns; /* SYN_FIRST, SYN_DECIDE: since when the first packet waits */
	__u32 sticky;  /* SYN_DECIDE: comes first, if it is not XR_NO_BACKEND */
	__u8 reason;   /* SYN_DECIDE: enum xr_reason */
	__u8 wscale;
	__u8 measured; /* XDP decides by the service's mode, in this pass */
	__u8 picks;    /* SYN_DECIDE: it may pick so often */
	__u8 over;     /* SYN_DECIDE: over budget, and picked all the same */
	__u8 tell;     /* SYN_DECIDE: the daemon gets to know */
	__u8 arm;      /* SYN_DECIDE: of the control arm */
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

/*
 * There is no event to be had, `counter` says why. What comes then may have no entry, or lose it:
 * for a while it is hashed. A service that is stateless has none made for it at all.
 */
static __always_inline int over_budget(const struct packet *p, struct syn *syn, __u32 counter)
{
	__u64 why = counter + unknown_zero(p->eth);
	__u8 reason = XR_REASON_BUDGET;

	/* Picked, not hashed: nobody finds that backend again without the flow's entries. */
	if (syn->picks && !(syn->service->flags & XR_SERVICE_STATELESS)) {
		syn->over = 1;
		count(why);
		return SYN_DECIDE;
	}
	if (why == XR_COUNT_ring_deep)
		reason = XR_REASON_BACKLOG;
	else if (why == XR_COUNT_ring_full)
		reason = XR_REASON_RING_FULL;
	extend_stateless(syn->service->id, syn->control->pending_idle_ns, syn->now_ns, why);
	syn->sticky = XR_NO_BACKEND; /* only the hash finds the same backend again */
	decide_because(syn, reason, why);
	return syn->service->flags & XR_SERVICE_STATELESS ? SYN_FLOOD : SYN_DECIDE;
}

/*
 * A first packet, before anybody is asked: it may be that the service does not take it from this
 * source, or takes no more. Else SYN_FIRST, and `sticky` is the backend that the source has
 * already, if it was none before.
 */
static __always_inline int admit(const struct packet *p, struct syn *syn)
{
	if (is_denied(p, syn->service))
		return drop_syn(XR_COUNT_source_denied);
	if (is_at_limit(syn->service)) {
		syn->reason = DECIDE_REFUSAL;
		syn->sticky = XR_NO_BACKEND;
		return SYN_DECIDE;
	}
	if (syn->sticky == XR_NO_BACKEND) {
		syn->sticky = affinity_backend(p, syn->service, syn->now_ns);
		syn->reason = XR_REASON_AFFINITY;
	}
	return SYN_FIRST;
}

/* Is something in the way of asking the daemon about a packet? SYN_FIRST: no. */
static __always_inline int may_ask(struct xdp_md *ctx, const struct packet *p, struct syn *syn)
{
	const struct control *control = syn->control;
	__u64 now_ns = syn->now_ns;

	if (p->ip->ttl <= 1) { /* no use in asking: it ends here */
		answer_ttl_exceeded(ctx);
		return SYN_DROP;
	}
	if (table_is_full(now_ns))
		return decide_because(syn, XR_REASON_TABLE_FULL, XR_COUNT_table_full);
	if (syn->measured)
		return SYN_FIRST;
	if (heartbeat_is_stale(control, now_ns))
		return decide_because(syn, XR_REASON_NO_HEARTBEAT, XR_COUNT_heartbeat_stale);
	if (p->frame_len > XR_FRAME_LARGE)
		return decide_because(syn, XR_REASON_FRAME_TOO_LONG, XR_COUNT_frame_too_long);
	return SYN_FIRST;
}

/* By the service's mode, behind what the source has already; by the chain if that is too old. */
static __always_inline void prepare_pick(const struct packet *p, struct syn *syn)
{
	__u64 zero = unknown_zero(p->eth);
	__u64 reason = XR_REASON_INLINE, picks = PICK_TRIES;

	syn->arm = is_control_arm(p, syn->service);
	if (syn->arm) {
		reason = XR_REASON_CONTROL_ARM;
	} else if (syn->service->mode == XR_MODE_SNAPSHOT) {
		reason = XR_REASON_SNAPSHOT;
		if (!is_snapshot_fresh(syn->service, syn->now_ns)) {
			count(XR_COUNT_snapshot_stale);
			reason = XR_REASON_SNAPSHOT_STALE;
			picks = 0;
		}
	}
	if (syn->sticky != XR_NO_BACKEND)
		reason = syn->reason;
	syn->reason = reason + zero;
	syn->picks = picks + zero;
}

/* XDP decides, in this pass. */
static __always_inline int decide_syn(struct xdp_md *ctx, const struct syn *syn)
{
	struct decide_state *state =
		begin_choice(ctx, syn->sticky, syn->reason, syn->held_ns, syn->now_ns);

	if (!state)
		return XDP_DROP;
	state->picks = syn->picks;
	state->flood = syn->over;
	state->tell = syn->tell;
	state->arm = syn->arm;
	return go_to_stage(ctx, XR_STAGE_DECIDE);
}

/*
 * May the packet be held? SYN_FIRST, or what instead. What goes where its source has a backend
 * already makes entries as any first packet does, and costs as much.
 */
static __always_inline int may_hold(struct xdp_md *ctx, const struct packet *p, struct syn *syn)
{
	int action = syn->sticky == XR_NO_BACKEND ? may_ask(ctx, p, syn) : SYN_FIRST;
	__u32 refused;

	if (action != SYN_FIRST)
		return action;
	if (syn->measured) {
		prepare_pick(p, syn);
		if (heartbeat_is_stale(syn->control, syn->now_ns)) /* nobody to be told */
			return SYN_DECIDE;
	}
	refused = event_pay(p, syn->service, syn->control, syn->now_ns);
	if (refused != XR_COUNTER_MAX)
		return over_budget(p, syn, refused);
	syn->tell = syn->measured;
	return syn->sticky == XR_NO_BACKEND && !syn->measured ? SYN_FIRST : SYN_DECIDE;
}

/* Notes that the first packet was seen: what comes again is no new event. */
static __always_inline int note_first(struct xdp_md *ctx, const struct packet *p,
				      const struct syn *syn, __u32 not_first)
{
	struct scratch *scratch = scratch_lookup(ctx);
	pending_flow_t *seen;
	flow_key_t key;
	long result;

	if (!scratch)
		return SYN_DROP;
	seen = &scratch->pending;
	__builtin_memset(seen, 0, sizeof(*seen));
	seen->seen_ns = syn->now_ns;
	seen->last_seen_ns = syn->now_ns;
	seen->isn = p->seq;
	seen->backend = XR_NO_BACKEND;
	seen->service = syn->service->id;
	seen->ifindex = ctx->ingress_ifindex;
	if (p->key.proto == IPPROTO_UDP) { /* of those that are held, this is one */
		seen->packets = 1;
		seen->bytes = p->frame_len;
	}
	flow_key_of_kind(p, XR_KIND_SEEN, &key);
	result = pending_flows_insert(&key, seen);
	if (result == EEXIST_RESULT)
		return drop_syn(not_first); /* another CPU was first */
	if (result)
		return drop_syn(XR_COUNT_pending_insert_failed);
	return SYN_FIRST;
}

/* A first packet that may be held: hold it and ask the daemon, or say why not. */
static __always_inline int first_packet(struct xdp_md *ctx, const struct packet *p, struct syn *syn)
{
	int action = note_first(ctx, p, syn, XR_COUNT_syn_held_again);

	if (action != SYN_FIRST)
		return action;
	if (first_packet_submit(ctx, p, XR_EVENT_FIRST_PACKET, syn->service, syn->wscale,
				syn->now_ns)) {
		flow_key_t key;

		/* nobody decides: it is one of a flood, and waits for none */
		flow_key_of_kind(p, XR_KIND_SEEN, &key);
		pending_flows_delete(&key);
		return over_budget(p, syn, XR_COUNT_ring_full);
	}
	return drop_syn(XR_COUNT_first_packet);
}

/*
 * The SYN-ACK follows the client, whose interface may have been made anew since: nothing else
 * of the client comes before it has that. Only who knows the ISN says so.
 */
static __always_inline void reply_follow_client(struct xdp_md *ctx, const struct packet *p,
						pending_flow_t *reply)
{
	if (reply->ifindex == ctx->ingress_ifindex && mac_equal(p->eth->h_source, reply->dmac))
		return;
	mac_copy(reply->dmac, p->eth->h_source);
	mac_copy(reply->smac, p->eth->h_dest);
	reply->ifindex = ctx->ingress_ifindex;
	reply->vlan = vlan_to_client(ctx, backends_lookup(reply->backend));
	count(XR_COUNT_client_moved);
}

/*
 * A client's SYN has come again. If its backend has said nothing yet, that is noted, once a flow;
 * of one-sided flows nobody sees the answer. A client that does not get the SYN-ACK which passed
 * here says nothing of the backend.
 */
static __always_inline void note_again(const struct packet *p, pending_flow_t *forward,
				       const pending_flow_t *reply)
{
	struct backend *backend = backends_lookup(forward->backend);

	if ((reply->flags & XR_PENDING_SYNACK) ||
	    (forward->flags & (XR_PENDING_AGAIN | XR_PENDING_CLOSED)) || !backend ||
	    (backend->flags & XR_BACKEND_ONE_SIDED) ||
	    !older_than(forward->seen_ns, SIGN_AGAIN_NS, clock_coarse()))
		return;
	forward->flags |= XR_PENDING_AGAIN;
	sign_bad(forward->backend, SIGN_UNANSWERED, p->key.saddr);
}

/*
 * Comes a SYN again whose backend cannot be reached any more? Nobody has to wait for the way to be
 * back, as an established flow has: it is decided anew.
 */
static __always_inline int lost_its_way(const struct packet *p, const pending_flow_t *forward)
{
	struct backend *backend;

	if (!forward->packets || forward->isn != p->seq)
		return 0;
	backend = backends_lookup(forward->backend);
	return !backend || (!backend->ifindex && !(backend->flags & XR_BACKEND_KERNEL));
}

/*
 * The ISN rule for a flow that is pending or not known. A SYN with the ISN of the entry is
 * a retransmit: same backend. With another ISN it is a new connection only if the old one
 * is over; else it goes to the bound backend, whose own stack answers it (RFC 5961, 4).
 */
static __always_inline int classify_syn(struct xdp_md *ctx, const struct packet *p, struct syn *syn)
{
	const struct control *control = syn->control;
	pending_flow_t *forward, *reply, *seen;
	flow_key_t key;
	int anew = 0, flood;

	flow_key_of_kind(p, XR_KIND_FORWARD, &key);
	forward = pending_find_flood(&key, &flood);
	syn->forward = forward;
	if (forward) {
		if (forward->flags & XR_PENDING_REFUSED) {
			if (forward->isn == p->seq)
				return SYN_DECIDED;
		} else {
			reply_key_of(forward, p->key.proto, &key);
			reply = pending_lookup_in(flood, &key);
			/* half evicted, or the tuple is another flow's: counts as undecided */
			if (reply && is_reply_of(p, reply) && !lost_its_way(p, forward)) {
				if (forward->isn == p->seq) {
					if (forward->packets) {
						count(XR_COUNT_syn_retransmit);
						note_again(p, forward, reply);
					}
					reply_follow_client(ctx, p, reply);
					return SYN_DECIDED;
				}
				if (!pending_is_over(forward, reply, IPPROTO_TCP, control,
						     clock_precise())) {
					count(XR_COUNT_syn_on_live_flow);
					return SYN_LATER;
				}
			}
		}
		anew = 1;
	}

	/* Before the clock, behind which no load begins early: so its miss is not waited for alone. */
	flow_key_of_kind(p, XR_KIND_SEEN, &key);
	seen = pending_flows_lookup(&key);
	syn->service = service_of(p);
	if (!syn->service) {
		count(XR_COUNT_pass_not_service);
		return SYN_PASS;
	}
	syn->now_ns = clock_precise();
	syn->held_ns = syn->now_ns;
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

/* Takes an established flow of a client out of its table, see flow_delete_in(). */
static __always_inline void forget_flow_in(void *table, struct xdp_md *ctx, const struct packet *p,
					   flow_entry_t *flow, flow_entry_t *peer)
{
	struct traffic carried;
	flow_key_t key;

	flow_carried(flow, peer, &carried);
	if (peer) {
		if (flow->flags & XR_FLOW_FULLNAT)
			rest_port_of(ctx, p, flow); /* before its entries go */
		peer_key(flow, p->key.proto, &key);
		flow_delete_in(table, &key);
	}
	flow_key_of_kind(p, XR_KIND_NONE, &key);
	flow_close_in(table, &key, flow, &carried);
}

static __always_inline void forget_flow(struct xdp_md *ctx, const struct packet *p,
					flow_entry_t *flow, flow_entry_t *peer)
{
	forget_flow_in(0, ctx, p, flow, peer);
}

/*
 * The ISN rule for an established flow. Returns 1 when the SYN belongs to it, 0 when it
 * begins a new flow: then nothing of the old one is left.
 */
static __always_inline int syn_of_flow(struct xdp_md *ctx, const struct packet *p,
				       flow_entry_t *flow, const struct control *control)
{
	flow_entry_t *peer = peer_of(&p->key, flow);
	flow_key_t key;

	if (flow->isn == p->seq) {
		count(XR_COUNT_syn_retransmit);
		return 1;
	}
	if (!flow_is_over(flow, peer, IPPROTO_TCP, control, clock_precise())) {
		count(XR_COUNT_syn_on_live_flow);
		return 1;
	}
	count(XR_COUNT_syn_reopened);
	forget_flow(ctx, p, flow, peer);
	flow_key_of_kind(p, XR_KIND_FORWARD, &key);
	forget_pending(p, pending_lookup(&key));
	return 0;
}

#endif
