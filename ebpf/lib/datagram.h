/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * stage_datagram: client to service, UDP, without an established flow. The first datagram is
 * held as a SYN is; so are a few more while its decision is open, and the daemon sends them on
 * in their order. Whatever is in the way of that, XDP decides.
 */
#ifndef XR_DATAGRAM_H
#define XR_DATAGRAM_H

#include "datagram_send.h"
#include "quic.h"
#include "syn.h"

/* Held of one flow, the first included: a post-quantum QUIC hello is two, and may be sent twice. */
#define HELD_MAX 4
#define HELD_BYTES 6144

/*
 * The daemon runs a held frame through this program first, sends it then, and says so (leaving).
 * A frame that is sent may still be behind one of another CPU, so long at most. An answer shows
 * that it is not.
 */
#define LEAVES_NS 10000000ULL

/* Until the daemon has sent a frame that it runs through here. */
static __always_inline void note_leaving(__u64 now_ns)
{
	__u64 *since = leaving_lookup(0);

	if (since)
		*since = now_ns;
}

/* Is a frame between its run and its departure? Of whatever flow: there is only one at a time. */
static __always_inline int one_is_leaving(void)
{
	__u64 *since = leaving_lookup(0);

	return since && *since;
}

/* Did XDP decide by itself, with what it had in its hands? Nobody else sends that. */
static __always_inline int is_decided_here(__u8 reason)
{
	return is_one_of_many(reason) || reason == XR_REASON_NO_HEARTBEAT ||
	       reason == XR_REASON_FRAME_TOO_LONG || reason == XR_REASON_DATAGRAMS ||
	       reason == XR_REASON_CONNECTION_ID || reason == XR_REASON_AFFINITY ||
	       reason == XR_REASON_SNAPSHOT || reason == XR_REASON_INLINE ||
	       reason == XR_REASON_SNAPSHOT_STALE;
}

static __always_inline int has_room(const struct packet *p, const pending_flow_t *held)
{
	return held->packets < HELD_MAX && held->bytes + p->frame_len <= HELD_BYTES;
}

/* Has the last of the held datagrams left? Each of them has been through here again. */
static __always_inline int have_left(const struct datagram *d, const pending_flow_t *held,
				     __u64 now_ns)
{
	if (d->reply->packets && held->packets == 1) /* it is the one that is answered */
		return 1;
	return !one_is_leaving() &&
	       (d->reply->packets || older_than(d->forward->last_seen_ns, LEAVES_NS, now_ns));
}

/*
 * A decided flow: is it the turn of those that the daemon holds? Then this one is held, too,
 * and comes behind them.
 */
static __always_inline int waits_its_turn(struct xdp_md *ctx, const struct packet *p,
					  const struct syn *syn, struct datagram *d)
{
	pending_flow_t *held;
	flow_key_t key;

	if (d->forward->packets > HELD_MAX || is_decided_here(d->forward->reason) ||
	    reinject_meta_of(ctx) || heartbeat_is_stale(syn->control, syn->now_ns))
		return 0;
	flow_key_of_kind(p, XR_KIND_SEEN, &key);
	held = pending_flows_lookup(&key);
	if (!held || d->forward->packets > held->packets || !has_room(p, held) ||
	    older_than(held->seen_ns, syn->service->deadline_ns, syn->now_ns))
		return 0;
	if (d->forward->packets == held->packets && have_left(d, held, syn->now_ns))
		return 0;
	d->held = held;
	return 1;
}

/* What becomes of the datagram. SYN_FIRST: it is held, the first one or (d->held) a later. */
static __always_inline int classify_datagram(struct xdp_md *ctx, const struct packet *p,
					     struct syn *syn, struct datagram *d)
{
	const struct control *control = syn->control;
	pending_flow_t *forward, *seen;
	flow_key_t key;

	flow_key_of_kind(p, XR_KIND_FORWARD, &key);
	forward = pending_flows_lookup(&key);
	if (forward && (forward->flags & XR_PENDING_REFUSED)) {
		if (!older_than(forward->last_seen_ns, control->pending_idle_ns, syn->now_ns)) {
			d->forward = forward;
			return SYN_DECIDED;
		}
		forget_pending_in(p, forward, 0);
	} else if (forward) {
		reply_key_of(forward, p->key.proto, &key);
		d->reply = pending_flows_lookup(&key);
		if (!d->reply)
			d->reply = restore_reply(ctx, p, forward, &key, syn->now_ns, 0);
		/* else its replies would go to the tuple's owner */
		if (d->reply && is_reply_of(p, d->reply) &&
		    !pending_is_over(forward, d->reply, IPPROTO_UDP, control, syn->now_ns)) {
			d->forward = forward;
			return waits_its_turn(ctx, p, syn, d) ? SYN_FIRST : SYN_DECIDED;
		}
		forget_pending_in(p, forward, 0);
	} else if (flood_lately() && flood_flows_lookup(&key)) {
		return SYN_FLOOD;
	}
	if (reinject_meta_of(ctx)) /* what it was decided by is gone */
		return drop_syn(XR_COUNT_datagram_dropped);
	flow_key_of_kind(p, XR_KIND_SEEN, &key);
	seen = pending_flows_lookup(&key);
	if (seen && older_than(seen->seen_ns, control->pending_idle_ns, syn->now_ns)) {
		pending_flows_delete(&key);
		seen = 0;
	}
	if (!seen)
		return SYN_FIRST;
	syn->held_ns = seen->seen_ns;
	if (older_than(seen->seen_ns, syn->service->deadline_ns, syn->now_ns))
		return decide_because(syn, XR_REASON_DEADLINE, XR_COUNT_deadline_passed);
	if (!has_room(p, seen))
		return decide_because(syn, XR_REASON_DATAGRAMS, XR_COUNT_datagrams_over);
	d->held = seen;
	return SYN_FIRST;
}

/* Hands the datagram to the daemon, or says what instead. */
static __always_inline int hold_datagram(struct xdp_md *ctx, const struct packet *p,
					 struct syn *syn, struct datagram *d)
{
	pending_flow_t *held = d->held;
	int action = may_hold(ctx, p, syn);

	if (action == SYN_FIRST && !held)
		action = note_first(ctx, p, syn, XR_COUNT_datagram_dropped);
	if (action != SYN_FIRST)
		return action;
	if (first_packet_submit(ctx, p, held ? XR_EVENT_DATAGRAM : XR_EVENT_FIRST_PACKET,
				syn->service, XR_NO_WSCALE, syn->now_ns)) {
		flow_key_t key;

		flow_key_of_kind(p, XR_KIND_SEEN, &key);
		if (!held) /* the daemon has nothing of it */
			pending_flows_delete(&key);
		return over_budget(p, syn, XR_COUNT_ring_full);
	}
	if (!held)
		return drop_syn(XR_COUNT_datagram_first);
	held->packets++;
	held->bytes += p->frame_len;
	return drop_syn(XR_COUNT_datagram_held);
}

static __always_inline int datagram_stage(struct xdp_md *ctx)
{
	struct syn syn = {.wscale = XR_NO_WSCALE, .sticky = XR_NO_BACKEND};
	struct datagram d = {};
	struct packet p;
	int action;

	if (parse_packet(ctx, &p) != PARSE_UDP)
		return XDP_PASS;
	syn.control = control_lookup();
	if (!syn.control)
		return XDP_PASS;
	syn.service = service_of(&p);
	if (!syn.service)
		return pass(XR_COUNT_pass_not_service);
	syn.now_ns = clock_precise();
	syn.held_ns = syn.now_ns;
	action = classify_datagram(ctx, &p, &syn, &d);
	if (action == SYN_FIRST && !d.held) {
		if (flow_table_lookup(&p.key)) /* another CPU has promoted it meanwhile */
			return go_to_stage(ctx, XR_STAGE_UDP);
		syn.sticky = quic_backend(ctx, &p, syn.service, syn.control, syn.now_ns);
		if (!may_choose(backends_lookup(syn.sticky), XR_MODE_STICKY))
			syn.sticky = XR_NO_BACKEND;
		syn.reason = XR_REASON_CONNECTION_ID;
		syn.measured = is_measured(syn.service);
		action = admit(&p, &syn);
	}
	if (action == SYN_FIRST)
		action = hold_datagram(ctx, &p, &syn, &d);
	if (action == SYN_DECIDE && !d.forward)
		return decide_syn(ctx, &syn);
	if (action == SYN_FLOOD)
		return go_to_stage(ctx, XR_STAGE_FLOOD);
	if (action == SYN_DROP || !d.forward)
		return XDP_DROP;
	if ((d.forward->flags & XR_PENDING_REFUSED) || !d.reply)
		return answer_unreachable(ctx, XR_COUNT_refused_by_daemon);
	if ((syn.service->flags & XR_SERVICE_QUIC) && d.forward->packets < QUIC_NOTED)
		quic_note(ctx, &p, syn.service, d.forward->backend, syn.control, syn.now_ns);
	if (promote_datagram(ctx, &p, &d, syn.service, syn.control, syn.now_ns))
		return go_to_stage(ctx, XR_STAGE_UDP);
	if (reinject_meta_of(ctx)) /* before it is counted */
		note_leaving(syn.now_ns);
	return send_datagram(ctx, &p, &d, syn.control, syn.now_ns);
}

#endif
