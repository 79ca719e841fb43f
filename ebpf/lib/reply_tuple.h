/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Two services share a backend, and a client uses one port for both: their reply tuples are
 * the same. Who has it keeps it while it lives; daemon/reply_tuple.py has the same rule.
 */
#ifndef XR_REPLY_TUPLE_H
#define XR_REPLY_TUPLE_H

#include "flood.h"
#include "flow.h"
#include "usage.h"

/* Does a REPLY entry belong to the packet's flow? */
static __always_inline int is_reply_of(const struct packet *p, const pending_flow_t *reply)
{
	return addr_equal(reply->new_saddr, p->key.daddr) && reply->new_sport == p->key.dport &&
	       addr_equal(reply->new_daddr, p->key.saddr) && reply->new_dport == p->key.sport;
}

/* Likewise an established flow's. */
static __always_inline int is_of_flow(const flow_entry_t *reply, const struct packet *p)
{
	return addr_equal(reply->new_saddr, p->key.daddr) && reply->new_sport == p->key.dport &&
	       addr_equal(reply->new_daddr, p->key.saddr) && reply->new_dport == p->key.sport;
}

/*
 * Does another established flow own the reply tuple? Its REPLY entry has aged
 * out of pending_flows long ago.
 */
static __always_inline int tuple_in_use(const struct packet *p, const flow_key_t *reply)
{
	flow_key_t key = *reply;
	flow_entry_t *owner;

	key.kind = XR_KIND_NONE;
	owner = flow_table_lookup(&key);
	if (!owner)
		owner = previous_lookup(&key);
	return owner && !is_of_flow(owner, p);
}

/* Does a flow of another service own it in the table beside the one that REPLY is in? */
static __always_inline int tuple_is_beside(const struct packet *p, int flood, flow_key_t *reply)
{
	pending_flow_t *owner = pending_lookup_beside(flood, reply);

	return owner && !is_reply_of(p, owner);
}

/* How long a pending flow may be silent: one that is proven is as good as established. */
static __always_inline __u64 pending_limit(const pending_flow_t *entry, __u8 proto,
					   const struct control *control)
{
	if (proto == IPPROTO_UDP)
		return control->udp_idle_ns;
	return entry->flags & XR_PENDING_PROVEN ? control->flow_idle_ns : control->pending_idle_ns;
}

/*
 * Is REPLY an earlier decision's? That of a one-sided flow has the same key for each backend, and
 * answers nothing: it says of no other one.
 */
static __always_inline int is_of_other_backend(const pending_flow_t *forward,
					       const pending_flow_t *reply)
{
	return forward->backend != reply->backend &&
	       !(addr_equal(forward->new_daddr, reply->new_saddr) &&
		 forward->new_dport == reply->new_sport);
}

/* Is the flow of these pending entries over? `forward` may be 0. */
static __always_inline int pending_is_over(const pending_flow_t *forward,
					   const pending_flow_t *reply, __u8 proto,
					   const struct control *control, __u64 now_ns)
{
	__u64 limit_ns;

	if (!forward || is_of_other_backend(forward, reply) || (forward->flags & XR_PENDING_CLOSED))
		return 1;
	limit_ns = pending_limit(forward, proto, control);
	return older_than(forward->last_seen_ns, limit_ns, now_ns) &&
	       older_than(reply->last_seen_ns, limit_ns, now_ns);
}

/* Removes SEEN and FORWARD of a flow whose reply tuple is taken over. */
static __always_inline void forget_forward(flow_key_t *key)
{
	key->kind = XR_KIND_FORWARD;
	pending_delete(key);
	key->kind = XR_KIND_SEEN;
	pending_flows_delete(key);
}

/*
 * Frees the reply tuple if it belongs to a flow of another service that is over: nothing of
 * that flow is left. What it has is copied first: a deleted entry is another one's at once.
 */
static __always_inline void free_reply_tuple(const struct packet *p, flow_key_t *reply,
					     const struct control *control, __u64 now_ns)
{
	pending_flow_t *forward, *pending;
	flow_entry_t *owner, *peer;
	flow_key_t key = *reply;
	flow_key_t other;
	addr_t over_saddr = no_addr();
	struct traffic carried;
	__be16 over_sport = 0;

	key.kind = XR_KIND_NONE;
	owner = flow_table_lookup(&key);
	if (owner && !is_of_flow(owner, p)) {
		peer = peer_of(&key, owner);
		if (!flow_is_over(owner, peer, p->key.proto, control, now_ns))
			return;
		over_saddr = owner->new_saddr;
		over_sport = owner->new_sport;
		peer_key(owner, p->key.proto, &other);
		if (peer)
			flow_carried(peer, owner, &carried);
		if (peer)
			flow_table_close(&other, peer, &carried);
		flow_table_delete(&key);
		forget_forward(&other);
		count(XR_COUNT_reply_tuple_freed);
	}
	pending = pending_lookup(reply);
	if (!pending || is_reply_of(p, pending))
		return;
	if (!addr_equal(pending->new_saddr, over_saddr) || pending->new_sport != over_sport) {
		other.saddr = pending->new_daddr;
		other.daddr = pending->new_saddr;
		other.sport = pending->new_dport;
		other.dport = pending->new_sport;
		other.proto = p->key.proto;
		other.kind = XR_KIND_FORWARD;
		other.pad = 0;
		forward = pending_lookup(&other);
		if (!pending_is_over(forward, pending, p->key.proto, control, now_ns))
			return;
		/* a FORWARD to another backend, or a SEEN without one, is a later flow's */
		if (forward && forward->backend == pending->backend)
			forget_forward(&other);
		count(XR_COUNT_reply_tuple_freed);
	}
	pending_delete(reply);
}

#endif
