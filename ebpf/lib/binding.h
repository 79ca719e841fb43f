/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Who decides, exactly once. A decision is REPLY inserted, then FORWARD inserted, both
 * BPF_NOEXIST, by the daemon and by XDP alike; FORWARD is the arbiter. This is XDP's half;
 * whom it chooses is in choice.h.
 */
#ifndef XR_BINDING_H
#define XR_BINDING_H

#include "events.h"
#include "flow.h"
#include "nat_ports.h"

#define E2BIG_RESULT (-7) /* -E2BIG: hash map full */

/*
 * A flow's hash, from host-order values so that core/flow_hash.py can mirror it.
 * Multiply and fold: each input bit reaches each output bit.
 */
static __always_inline __u32 tuple_hash(const flow_key_t *key, __u32 ports)
{
	__u32 hash = addr_fold(key->saddr) * 0x9e3779b1U;

	hash ^= hash >> 15;
	hash += ports;
	hash *= 0x85ebca6bU;
	hash ^= hash >> 13;
	hash += addr_fold(key->daddr);
	hash *= 0xc2b2ae35U;
	return hash ^ (hash >> 16);
}

static __always_inline __u32 flow_hash(const flow_key_t *key)
{
	return tuple_hash(key, (__u32)xr_ntohs(key->sport) << 16 | xr_ntohs(key->dport));
}

/* What a backend is chosen by: flows of one source go together if the service wants that. */
static __always_inline __u32 choice_hash(const struct service *service, const flow_key_t *key)
{
	return service->flags & XR_SERVICE_AFFINITY ? tuple_hash(key, 0) : flow_hash(key);
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

static __always_inline void flow_key_of_kind(const struct packet *p, __u8 kind, flow_key_t *key)
{
	*key = p->key;
	key->kind = kind;
}

/* Key of the reply direction: from what FORWARD rewrites to. */
static __always_inline void reply_key_of(const pending_flow_t *forward, __u8 proto, flow_key_t *key)
{
	key->saddr = forward->new_daddr;
	key->daddr = forward->new_saddr;
	key->sport = forward->new_dport;
	key->dport = forward->new_sport;
	key->proto = proto;
	key->kind = XR_KIND_REPLY;
	key->pad = 0;
}

static __always_inline void forget_entry(flow_key_t *key, const int both)
{
	if (both)
		pending_delete(key);
	else
		pending_flows_delete(key);
}

/* Removes what is pending about the packet's flow; a port rests. `forward` may be 0. */
static __always_inline void forget_pending_in(const struct packet *p, const pending_flow_t *forward,
					      const int both)
{
	pending_flow_t *reply;
	flow_key_t key;

	if (forward && forward->backend != XR_NO_BACKEND) {
		reply_key_of(forward, p->key.proto, &key);
		reply = both ? pending_lookup(&key) : pending_flows_lookup(&key);
		if (reply && is_reply_of(p, reply)) {
			if (reply->flags & XR_PENDING_FULLNAT)
				rest_reply(reply);
			else
				forget_entry(&key, both);
		}
	}
	flow_key_of_kind(p, XR_KIND_FORWARD, &key);
	forget_entry(&key, both);
	flow_key_of_kind(p, XR_KIND_SEEN, &key);
	pending_flows_delete(&key);
}

static __always_inline void forget_pending(const struct packet *p, const pending_flow_t *forward)
{
	forget_pending_in(p, forward, 1);
}

/* A backend of many ports takes the packet's own. */
static __always_inline __be16 backend_port(const struct backend *backend, const struct packet *p)
{
	return backend->port ? backend->port : p->key.dport;
}

/* Is it the client itself? Its own packets would come back to it. */
static __always_inline int is_backend_itself(const struct backend *backend, const struct packet *p)
{
	struct ip_addr client = shared_addr(p->key.saddr);

	return !((client.word[0] ^ backend->addr.word[0]) |
		 (client.word[1] ^ backend->addr.word[1]) |
		 (client.word[2] ^ backend->addr.word[2]) |
		 (client.word[3] ^ backend->addr.word[3]));
}

enum bind_result {
	BIND_DONE = 0,
	BIND_OTHERS,   /* somebody else decided a moment before: theirs counts */
	BIND_NOT_THIS, /* the choice cannot be made */
	BIND_TUPLE_TAKEN,
	BIND_TAKE_OVER, /* stage_take_over is to look at the tuple first */
	BIND_FAILED,
};

/*
 * From here on what is in `scratch` is read back from there, of which the verifier knows nothing:
 * so it does not walk the rest of the program once for each value that was just written.
 */
static __always_inline void forget_values(void)
{
	asm volatile("" ::: "memory");
}

/* The client's side of a pending flow's REPLY; nothing of the backend is known yet. */
static __always_inline void reply_fill(pending_flow_t *value, struct xdp_md *ctx,
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

/* REPLY of fullnat, with a port of ours. 1, EEXIST_RESULT when none is free, or another error. */
static __always_inline long bind_port(const struct backend *backend, flow_key_t *reply,
				      pending_flow_t *value, const volatile __u8 *flood)
{
	struct control *control = control_lookup();
	long result;

	if (!control)
		return -1;
	reply->daddr = own_addr(&backend->probe_addr);
	value->flags = XR_PENDING_FULLNAT;
	result = insert_at_free_port(control, reply, value, flood);
	return result ? result : 1;
}

/*
 * REPLY is there. If nothing was heard of it since the flow's first packet, it was left by an
 * earlier flow of this tuple, whose FORWARD aged or was evicted: the client may come by another
 * way, and whether its segments are hashed goes by this decision.
 */
static __always_inline void reply_begin(pending_flow_t *reply, const pending_flow_t *value)
{
	if (!older_than(reply->last_seen_ns, 0, value->seen_ns))
		return;
	reply->seen_ns = value->seen_ns;
	reply->last_seen_ns = value->last_seen_ns;
	reply->ifindex = value->ifindex;
	mac_copy(reply->dmac, value->dmac);
	mac_copy(reply->smac, value->smac);
	reply->vlan = value->vlan;
	reply->mode = value->mode;
	reply->reason = value->reason;
}

/*
 * REPLY of a flow that keeps its client's address. 1; 0 when the daemon, which is deciding for the
 * same backend just now, has put it there; EEXIST_RESULT when it is another flow's, or an error.
 */
static __always_inline long bind_reply(const struct packet *p, const struct backend *backend,
				       const struct decide_state *state, flow_key_t *reply,
				       pending_flow_t *value)
{
	pending_flow_t *theirs;
	int flood = state->flood;
	long result, own = 1;

	result = pending_insert_in(flood, reply, value);
	if (result == EEXIST_RESULT) {
		theirs = pending_lookup_in(flood, reply);
		if (!theirs || !is_reply_of(p, theirs))
			return EEXIST_RESULT;
		reply_begin(theirs, value);
		own = 0;
	} else if (result) {
		return result;
	} else {
		/*
		 * A lookup marks the entry as used. Of those that are not, the LRU gives away the
		 * newest first when all older ones are: within a burst of SYNs, before the SYN-ACK.
		 */
		pending_lookup_in(flood, reply);
	}
	if ((backend->flags & XR_BACKEND_SHARED) &&
	    (tuple_in_use(p, reply) || tuple_is_beside(p, flood, reply))) {
		if (own)
			pending_delete_in(flood, reply);
		return EEXIST_RESULT;
	}
	return own;
}

/* Takes out the REPLY of a decision that came to nothing, if it put it there. */
static __always_inline void unbind_reply(const struct decide_state *state, flow_key_t *reply)
{
	if (state->own_reply)
		pending_delete_in(state->flood, reply);
}

/*
 * The second half of a binding: FORWARD, beside the REPLY in scratch, which is taken out again
 * when it is not the decision's.
 */
static __always_inline int bind_forward(const struct packet *p, struct scratch *scratch)
{
	const struct decide_state *state = &scratch->decide;
	pending_flow_t *value = &scratch->pending, *theirs;
	flow_key_t *reply = &scratch->keys[0];
	flow_key_t *forward = &scratch->keys[1];
	int flood = state->flood;
	long result;

	value->isn = p->seq;
	value->new_saddr = reply->daddr;
	value->new_daddr = reply->saddr;
	value->new_sport = reply->dport;
	value->new_dport = reply->sport;
	value->latency_ns = elapsed_ns(state->held_ns, state->now_ns);
	value->syn_data = p->payload;
	value->wscale = state->wscale;
	flow_key_of_kind(p, XR_KIND_FORWARD, forward);
	result = pending_insert_in(flood, forward, value);
	if (!result) {
		if (!pending_lookup_beside(flood, forward)) {
			if (flood)
				count(XR_COUNT_flood_entry);
			return BIND_DONE;
		}
		pending_delete_in(flood, forward); /* both may withdraw: the client asks again */
		unbind_reply(state, reply);
		return BIND_OTHERS;
	}
	if (result == EEXIST_RESULT) {
		theirs = pending_lookup_in(flood, forward);
		if (theirs && (theirs->backend != state->backend || !sends_from(theirs, reply)))
			unbind_reply(state, reply);
		return BIND_OTHERS;
	}
	unbind_reply(state, reply);
	return BIND_FAILED;
}

static __always_inline int bind_flow(struct xdp_md *ctx, const struct packet *p,
				     const struct service *service, const struct backend *backend,
				     struct scratch *scratch)
{
	struct decide_state *state = &scratch->decide;
	pending_flow_t *value = &scratch->pending;
	flow_key_t *reply = &scratch->keys[0];
	__u32 one_sided;
	long own_reply;

	reply_fill(value, ctx, p);
	value->seen_ns = state->held_ns;
	value->last_seen_ns = state->now_ns;
	value->backend = state->backend;
	value->service = service->id;
	value->mode = state->mode;
	value->reason = state->reason;
	value->vlan = vlan_to_client(ctx, backend);
	reply->daddr = p->key.saddr;
	reply->dport = p->key.sport;
	/* One-sided: nothing is rewritten, and the tuple is nobody else's. A branch would have the
	 * verifier walk all that follows twice. */
	one_sided = -(__u32) !!(backend->flags & XR_BACKEND_ONE_SIDED);
	asm volatile("" : "+r"(one_sided));
	reply->saddr = addr_choose(one_sided, p->key.daddr, own_addr(&backend->addr));
	reply->sport = (p->key.dport & one_sided) | (backend_port(backend, p) & ~one_sided);
	reply->proto = p->key.proto;
	reply->kind = XR_KIND_REPLY;
	reply->pad = 0;
	if (state->take_over && !state->freed && !is_fullnat(service))
		return BIND_TAKE_OVER;
	own_reply = is_fullnat(service) ? bind_port(backend, reply, value, &state->flood)
					: bind_reply(p, backend, state, reply, value);
	if (own_reply < 0)
		return own_reply == EEXIST_RESULT ? BIND_TUPLE_TAKEN : BIND_FAILED;
	state->own_reply = own_reply;
	forget_values();
	return bind_forward(p, scratch);
}

/* Sends a client's packet to the backend that FORWARD names, or answers by RST. */
static __always_inline int pending_forward(struct xdp_md *ctx, struct packet *p,
					   pending_flow_t *forward)
{
	struct rewrite to;

	if (forward->flags & XR_PENDING_REFUSED)
		return answer_rst(ctx, p, XR_COUNT_refused_by_daemon);
	if (is_long(p, control_lookup())) {
		struct backend *backend = backends_lookup(forward->backend);
		__u32 mtu = unfit_mtu_to(ctx, p, backend);

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

static __always_inline void flow_event_fill(struct event *event, struct xdp_md *ctx,
					    const struct packet *p, __u8 type,
					    const pending_flow_t *forward, __u32 synack_us,
					    __u64 now_ns)
{
	event_fill(event, ctx, p, type, now_ns);
	event->service = forward->service;
	event->backend = forward->backend;
	event->detail = forward->mode;
	event->reason = forward->reason;
	event->fppl_ns = forward->fppl_ns;
	event->synack_us = synack_us;
	event->seen_ns = forward->seen_ns;
}

/* Tells the daemon what became of a flow. */
static __always_inline void flow_event_submit(struct xdp_md *ctx, const struct packet *p, __u8 type,
					      const pending_flow_t *forward, __u32 synack_us,
					      __u64 now_ns)
{
	struct event *event = events_reserve();

	if (!event) {
		count(XR_COUNT_event_lost);
		return;
	}
	flow_event_fill(event, ctx, p, type, forward, synack_us, now_ns);
	events_submit(event);
}

#endif
