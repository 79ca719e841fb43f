/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Two services share a backend, and a client uses one port for both: their reply tuples are
 * the same. Who has it keeps it while it lives; daemon/reply_tuple.py has the same rule.
 */
#ifndef XR_REPLY_TUPLE_H
#define XR_REPLY_TUPLE_H

#include "flow.h"

/* Does a REPLY entry belong to the packet's flow? */
static __always_inline int is_reply_of(const struct packet *p, const struct pending_flow *reply)
{
	return reply->new_saddr == p->key.daddr && reply->new_sport == p->key.dport;
}

/*
 * Does an established flow of another service own the reply tuple? Its REPLY entry has aged
 * out of pending_flows long ago.
 */
static __always_inline int tuple_in_use(const struct packet *p, const struct flow_key *reply)
{
	struct flow_key key = *reply;
	struct flow_entry *owner;

	key.kind = XR_KIND_NONE;
	owner = flow_table_lookup(&key);
	return owner && (owner->new_saddr != p->key.daddr || owner->new_sport != p->key.dport);
}

/* How long a pending flow may be silent: one that is proven is as good as established. */
static __always_inline __u64 pending_limit(const struct pending_flow *entry,
					   const struct control *control)
{
	return entry->flags & XR_PENDING_PROVEN ? control->flow_idle_ns : control->pending_idle_ns;
}

/* Is the flow of these pending entries over? `forward` may be 0. */
static __always_inline int pending_is_over(const struct pending_flow *forward,
					   const struct pending_flow *reply,
					   const struct control *control, __u64 now_ns)
{
	if (!forward || forward->backend != reply->backend || (forward->flags & XR_PENDING_CLOSED))
		return 1;
	return older_than(forward->last_seen_ns, pending_limit(forward, control), now_ns) &&
	       older_than(reply->last_seen_ns, pending_limit(forward, control), now_ns);
}

/* Removes SEEN and FORWARD of a flow whose reply tuple is taken over. */
static __always_inline void forget_forward(struct flow_key *key)
{
	key->kind = XR_KIND_FORWARD;
	pending_flows_delete(key);
	key->kind = XR_KIND_SEEN;
	pending_flows_delete(key);
}

/*
 * Frees the reply tuple if it belongs to a flow of another service that is over: nothing of
 * that flow is left. What it has is copied first: a deleted entry is another one's at once.
 */
static __always_inline void free_reply_tuple(const struct packet *p, struct flow_key *reply,
					     const struct control *control, __u64 now_ns)
{
	struct pending_flow *forward, *pending;
	struct flow_entry *owner, *peer;
	struct flow_key key = *reply;
	struct flow_key other;
	__be32 over_saddr = 0;
	__be16 over_sport = 0;

	key.kind = XR_KIND_NONE;
	owner = flow_table_lookup(&key);
	if (owner && (owner->new_saddr != p->key.daddr || owner->new_sport != p->key.dport)) {
		peer = peer_of(&key, owner);
		if (!flow_is_over(owner, peer, control, now_ns))
			return;
		over_saddr = owner->new_saddr;
		over_sport = owner->new_sport;
		peer_key(owner, &other);
		if (peer)
			flow_table_delete(&other);
		flow_table_delete(&key);
		forget_forward(&other);
		count(XR_COUNT_reply_tuple_freed);
	}
	pending = pending_flows_lookup(reply);
	if (!pending || is_reply_of(p, pending))
		return;
	if (pending->new_saddr != over_saddr || pending->new_sport != over_sport) {
		other.saddr = pending->new_daddr;
		other.daddr = pending->new_saddr;
		other.sport = pending->new_dport;
		other.dport = pending->new_sport;
		other.proto = IPPROTO_TCP;
		other.kind = XR_KIND_FORWARD;
		other.pad = 0;
		forward = pending_flows_lookup(&other);
		if (!pending_is_over(forward, pending, control, now_ns))
			return;
		/* a FORWARD to another backend, or a SEEN without one, is a later flow's */
		if (forward && forward->backend == pending->backend)
			forget_forward(&other);
		count(XR_COUNT_reply_tuple_freed);
	}
	pending_flows_delete(reply);
}

#endif
