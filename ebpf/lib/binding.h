/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Who decides, exactly once. A decision is REPLY inserted, then FORWARD inserted, both
 * BPF_NOEXIST, by the daemon and by XDP alike; FORWARD is the arbiter. This file is
 * XDP's half: the degrade chain.
 */
#ifndef XR_BINDING_H
#define XR_BINDING_H

#include "events.h"
#include "flow.h"
#include "reply_tuple.h"

#define EEXIST_RESULT (-17) /* -EEXIST; uapi errno.h is not there for BPF targets */
#define E2BIG_RESULT (-7)   /* -E2BIG: hash map full */

/* Attempts at a free reply tuple: the fallback, then slots of the hash table. */
#define DECIDE_ATTEMPTS 4
#define DECIDE_SLOT_STEP 397 /* coprime to XR_HASH_SLOTS */

/*
 * A flow's hash, from host-order values so that core/selection.py can mirror it.
 * Multiply and fold: each input bit reaches each output bit.
 */
static __always_inline __u32 flow_hash(const struct flow_key *key)
{
	__u32 hash = xr_ntohl(key->saddr) * 0x9e3779b1U;

	hash ^= hash >> 15;
	hash += (__u32)xr_ntohs(key->sport) << 16 | xr_ntohs(key->dport);
	hash *= 0x85ebca6bU;
	hash ^= hash >> 13;
	hash += xr_ntohl(key->daddr);
	hash *= 0xc2b2ae35U;
	return hash ^ (hash >> 16);
}

static __always_inline int backend_usable(const struct backend *backend)
{
	return backend && (backend->flags & XR_BACKEND_UP) &&
	       !(backend->flags & XR_BACKEND_DRAINING) && backend->ifindex;
}

static __always_inline __u32 hash_pick(const struct service *service, __u32 hash)
{
	struct hash_table *table = hash_tables_lookup(2 * service->id + (service->hash_active & 1));
	__u32 slot = hash % XR_HASH_SLOTS;

	/* Without this clang knows slot < XR_HASH_SLOTS, drops the check, and the verifier
	 * refuses table->slots[slot] as unbounded. */
	asm volatile("" : "+r"(slot));
	if (!table || slot >= XR_HASH_SLOTS)
		return XR_NO_BACKEND;
	return table->slots[slot];
}

static __always_inline void flow_key_of_kind(const struct packet *p, __u8 kind,
					     struct flow_key *key)
{
	*key = p->key;
	key->kind = kind;
}

/* Key of the reply direction: from what FORWARD rewrites to. */
static __always_inline void reply_key_of(const struct pending_flow *forward, struct flow_key *key)
{
	key->saddr = forward->new_daddr;
	key->daddr = forward->new_saddr;
	key->sport = forward->new_dport;
	key->dport = forward->new_sport;
	key->proto = IPPROTO_TCP;
	key->kind = XR_KIND_REPLY;
	key->pad = 0;
}

/* Removes what is pending about the packet's flow. `forward` may be 0. */
static __always_inline void forget_pending(const struct packet *p,
					   const struct pending_flow *forward)
{
	struct pending_flow *reply;
	struct flow_key key;

	if (forward && forward->backend != XR_NO_BACKEND) {
		reply_key_of(forward, &key);
		reply = pending_flows_lookup(&key);
		if (reply && is_reply_of(p, reply))
			pending_flows_delete(&key);
	}
	flow_key_of_kind(p, XR_KIND_FORWARD, &key);
	pending_flows_delete(&key);
	flow_key_of_kind(p, XR_KIND_SEEN, &key);
	pending_flows_delete(&key);
}

enum bind_result {
	BIND_DONE = 0,
	BIND_OTHERS, /* somebody else decided a moment before: theirs counts */
	BIND_TUPLE_TAKEN,
	BIND_FAILED,
};

struct bind {
	__u64 seen_ns;
	__u64 now_ns;
	__u32 backend;
	__u8 mode;
	__u8 reason;
	__u8 wscale;
	__u8 take_over;
};

/* The client's side of a pending flow's REPLY; nothing of the backend is known yet. */
static __always_inline void reply_fill(struct pending_flow *value, struct xdp_md *ctx,
				       const struct packet *p)
{
	__builtin_memset(value, 0, sizeof(*value));
	value->ifindex = ctx->ingress_ifindex;
	value->new_saddr = p->key.daddr;
	value->new_daddr = p->key.saddr;
	value->new_sport = p->key.dport;
	value->new_dport = p->key.sport;
	value->wscale = XR_NO_WSCALE;
	mac_copy(value->dmac, p->eth->h_source);
	mac_copy(value->smac, p->eth->h_dest);
}

static __always_inline int bind_flow(struct xdp_md *ctx, const struct packet *p,
				     const struct service *service, const struct backend *backend,
				     const struct bind *bind)
{
	struct scratch *scratch = scratch_lookup();
	struct pending_flow *value, *theirs;
	struct flow_key reply, forward;
	int own_reply = 1;
	long result;

	if (!scratch)
		return BIND_FAILED;
	value = &scratch->pending;
	reply_fill(value, ctx, p);
	value->seen_ns = bind->seen_ns;
	value->last_seen_ns = bind->now_ns;
	value->backend = bind->backend;
	value->service = service->id;
	value->mode = bind->mode;
	value->reason = bind->reason;
	reply.saddr = backend->addr;
	reply.daddr = p->key.saddr;
	reply.sport = backend->port;
	reply.dport = p->key.sport;
	reply.proto = IPPROTO_TCP;
	reply.kind = XR_KIND_REPLY;
	reply.pad = 0;
	if (bind->take_over) {
		struct control *control = control_lookup();

		if (control)
			free_reply_tuple(p, &reply, control, bind->now_ns);
	}
	result = pending_flows_insert(&reply, value);
	if (result == EEXIST_RESULT) {
		theirs = pending_flows_lookup(&reply);
		if (!theirs || !is_reply_of(p, theirs))
			return BIND_TUPLE_TAKEN;
		own_reply = 0; /* the daemon is deciding for the same backend just now */
	} else if (result) {
		return BIND_FAILED;
	} else {
		/*
		 * A lookup marks the entry as used. Of those that are not, the LRU gives away the
		 * newest first when all older ones are: within a burst of SYNs, before the SYN-ACK.
		 */
		pending_flows_lookup(&reply);
	}
	if ((backend->flags & XR_BACKEND_SHARED) && tuple_in_use(p, &reply)) {
		if (own_reply)
			pending_flows_delete(&reply);
		return BIND_TUPLE_TAKEN;
	}

	value->isn = p->seq;
	value->new_saddr = p->key.saddr;
	value->new_daddr = backend->addr;
	value->new_sport = p->key.sport;
	value->new_dport = backend->port;
	value->latency_ns = elapsed_ns(bind->seen_ns, bind->now_ns);
	value->syn_data = p->payload;
	value->wscale = bind->wscale;
	flow_key_of_kind(p, XR_KIND_FORWARD, &forward);
	result = pending_flows_insert(&forward, value);
	if (!result)
		return BIND_DONE;
	if (result == EEXIST_RESULT) {
		theirs = pending_flows_lookup(&forward);
		if (own_reply && theirs && theirs->backend != bind->backend)
			pending_flows_delete(&reply);
		return BIND_OTHERS;
	}
	if (own_reply)
		pending_flows_delete(&reply);
	return BIND_FAILED;
}

/*
 * Decided because there are too many: new entries may push the flow's out, before its
 * handshake is over or, without a place in flow_table, later. Then its next segment is an
 * orphan, which the hash sends to the same backend.
 */
static __always_inline int is_one_of_many(__u8 reason)
{
	return reason == XR_REASON_BUDGET || reason == XR_REASON_BACKLOG ||
	       reason == XR_REASON_RING_FULL || reason == XR_REASON_TABLE_FULL;
}

/*
 * The degrade chain: configured fallback, if up, then consistent hash over backends that
 * are up. One that may lose its entries is hashed only: so the hash finds the same backend
 * for what comes then. Gives the next choice that can be made, in `bind`, or 0.
 */
static __always_inline struct backend *next_choice(const struct packet *p,
						   const struct service *service,
						   struct decide_state *state, struct bind *bind)
{
	__u32 hash = flow_hash(&p->key);
	int turn;

	for (turn = 0; turn < DECIDE_ATTEMPTS; turn++) {
		__u32 attempt = state->attempt;
		struct backend *backend;

		if (attempt >= DECIDE_ATTEMPTS)
			return 0;
		state->attempt = attempt + 1;
		if (!attempt) {
			bind->backend = service->fallback;
			bind->mode = XR_MODE_FALLBACK;
			if (bind->backend == XR_NO_BACKEND || bind->reason == XR_REASON_ORPHAN ||
			    is_one_of_many(bind->reason))
				continue;
		} else {
			bind->backend = hash_pick(service, hash + (attempt - 1) * DECIDE_SLOT_STEP);
			bind->mode = XR_MODE_HASH;
		}
		backend = backends_lookup(bind->backend);
		if (!backend_usable(backend) || bind->backend == state->tried)
			continue;
		state->tried = bind->backend;
		if (backend->addr != p->key.saddr)
			return backend;
		count(XR_COUNT_client_is_backend); /* its own packets would come back to it */
	}
	return 0;
}

/*
 * Makes one choice and binds the flow to it. BIND_TUPLE_TAKEN: there may be another one;
 * BIND_FAILED: there is none, or no memory.
 */
static __always_inline int decide(struct xdp_md *ctx, const struct packet *p,
				  const struct service *service, struct decide_state *state,
				  struct bind *bind)
{
	struct backend *backend = next_choice(p, service, state, bind);
	int result;

	if (!backend)
		return BIND_FAILED;
	result = bind_flow(ctx, p, service, backend, bind);
	if (result == BIND_TUPLE_TAKEN) {
		state->taken = 1;
		if (!bind->take_over)
			count(XR_COUNT_pending_reply_taken);
	} else if (result == BIND_DONE) {
		count(bind->mode == XR_MODE_FALLBACK ? XR_COUNT_decided_fallback
						     : XR_COUNT_decided_hash);
	} else if (result == BIND_FAILED) {
		state->attempt = DECIDE_ATTEMPTS;
		state->taken = 0;
		count(XR_COUNT_pending_insert_failed);
	}
	return result;
}

/*
 * Is there another choice for stage_decide? Each is a run of its own: a loop of them would
 * be several times as much to verify. When all are behind and some were taken: once more, and
 * now from flows that are over. A backend that has just had a connection on this tuple is
 * second best: it may be in TIME_WAIT there.
 */
static __always_inline int may_choose_again(struct decide_state *state, int result)
{
	if (result == BIND_TUPLE_TAKEN)
		return 1;
	if (result != BIND_FAILED || !state->taken || state->take_over)
		return 0;
	state->take_over = 1;
	state->attempt = 0;
	state->tried = XR_NO_BACKEND;
	return 1;
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
	scratch->decide.take_over = 0;
	scratch->decide.attempt = 0;
	scratch->decide.taken = 0;
	scratch->decide.tried = XR_NO_BACKEND;
	scratch->decide.held_ns = held_ns;
	scratch->decide.now_ns = now_ns;
	return go_to_stage(ctx, XR_STAGE_DECIDE);
}

/* Sends a client's packet to the backend that FORWARD names, or answers by RST. */
static __always_inline int pending_forward(struct xdp_md *ctx, struct packet *p,
					   struct pending_flow *forward)
{
	struct rewrite to;

	if (forward->flags & XR_PENDING_REFUSED)
		return answer_rst(ctx, p, XR_COUNT_refused_by_daemon);
	if (is_long(p, control_lookup())) {
		struct backend *backend = backends_lookup(forward->backend);
		__u32 mtu = unfit_mtu(ctx, p, backend ? backend->ifindex : 0,
				      handoff_to_backend(backend));

		if (mtu)
			return too_big(ctx, p, mtu);
	}
	if (!(p->flags & TCP_SYN) || p->seq == forward->isn) /* a guess keeps nothing alive */
		forward->last_seen_ns = clock_coarse();
	if (!forward->packets++)
		forward->fppl_ns = elapsed_ns(forward->seen_ns, clock_precise());
	forward->bytes += p->ip_len;
	rewrite_from_pending(&p->key, forward, &to);
	return send_to_backend(ctx, p, &to, forward->backend);
}

/* Tells the daemon what became of a flow. */
static __always_inline void flow_event_submit(struct xdp_md *ctx, const struct packet *p, __u8 type,
					      const struct pending_flow *forward, __u32 synack_us,
					      __u64 now_ns)
{
	struct event *event = events_reserve();

	if (!event) {
		count(XR_COUNT_event_lost);
		return;
	}
	event_fill(event, ctx, p, type, now_ns);
	event->service = forward->service;
	event->backend = forward->backend;
	event->detail = forward->mode;
	event->reason = forward->reason;
	event->fppl_ns = forward->fppl_ns;
	event->synack_us = synack_us;
	event->seen_ns = forward->seen_ns;
	events_submit(event);
}

#endif
