/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * stage_flood: flows of a stateless service that are over budget. The hash finds the backend
 * of each segment again, and a backend serves one service only, so that neither direction
 * needs an entry: a flood of forged SYNs costs no memory.
 *
 * A flow gets its entries once its backend speaks on it, beyond SYN-ACK and RST: the backend
 * has the connection, so the client's ACK was right. That is sure if the segment carries data
 * or a FIN. A bare ACK may also answer a second, different SYN (RFC 9293, 3.10.7.4), which
 * forgers can send: such a flow is noted in flood_flows, and moves on when the client shows
 * that it knows the backend's number.
 */
#ifndef XR_STATELESS_H
#define XR_STATELESS_H

#include "choice.h"
#include "classify.h"
#include "fib.h"
#include "flood_datagram.h"
#include "pending.h"

/* Neither side's window scale is known: the largest. */
#define STATELESS_WSCALE 14

/* Counts per service; the bucket is this CPU's own. */
static __always_inline void count_stateless(__u32 service)
{
	struct token_bucket *bucket = tokens_lookup(XR_TOKENS_SERVICE + service);

	count(XR_COUNT_stateless_forwarded);
	if (bucket)
		bucket->asked++;
}

/* The backend that the hash finds, as stage_decide would: its id, or XR_NO_BACKEND. */
static __always_inline __u32 hash_choice(const struct packet *p, const struct service *service)
{
	__u32 hash = choice_hash(service, &p->key);
	__u32 id, tried = XR_NO_BACKEND;
	struct backend *backend;
	int turn;

	for (turn = 0; turn < HASH_LOOKS_ALL; turn++) {
		id = hash_pick(service, hash);
		hash += DECIDE_SLOT_STEP;
		backend = backends_lookup(id);
		if (!backend_usable(backend) || id == tried)
			continue;
		if (!is_backend_itself(backend, p))
			return id;
		tried = id;
		count(XR_COUNT_client_is_backend);
	}
	return XR_NO_BACKEND;
}

/* A client's segment: to the backend that the hash says. */
static __always_inline int stateless_forward(struct xdp_md *ctx, struct packet *p,
					     const struct service *service, struct rewrite *to)
{
	struct backend *backend;
	__u32 id;

	/* Without ACK it is no part of a connection, and would only make the backend speak. */
	if (!(p->flags & (TCP_SYN | TCP_ACK | TCP_RST)))
		return drop(XR_COUNT_orphan_dropped);
	id = hash_choice(p, service);
	backend = backends_lookup(id);
	if (!backend) { /* refused there */
		__u64 now_ns = clock_precise();

		return go_to_decide(ctx, XR_REASON_BUDGET, now_ns, now_ns);
	}
	if (is_long(p, control_lookup())) {
		__u32 mtu = unfit_mtu(ctx, p, backend->ifindex, handoff_to_backend(backend));

		if (mtu)
			return too_big(ctx, p, mtu);
	}
	to->saddr = p->key.saddr;
	to->daddr = own_addr(&backend->addr);
	to->sport = p->key.sport;
	to->dport = backend_port(backend, p);
	to->l3_delta = csum_delta_addrs(&p->key, to->saddr, to->daddr);
	to->l4_delta = csum_delta_l4(&p->key, to->l3_delta, to->sport, to->dport);
	count_stateless(service->id);
	return send_to_backend(ctx, p, to, id);
}

/* A SYN, of which stage_syn knows all that it takes: there are many, and a stage costs 34 ns. */
static __always_inline int flood_syn(struct xdp_md *ctx, struct packet *p,
				     const struct service *service)
{
	struct rewrite to;

	to.udp = 0;
	to.later_fragment = 0;
	return stateless_forward(ctx, p, service, &to);
}

/*
 * The kernel's way to a client is by an attached interface itself, where it sends without a tag:
 * so do replies that come by a tag of the backend's own.
 */
static __always_inline __u16 stateless_vlan(__u32 backend_id)
{
	const struct backend *backend = backends_lookup(backend_id);

	return backend && backend->vlan ? XR_VLAN_NONE : XR_VLAN_KEEP;
}

/* Tells the daemon of a flow that it has not heard of. */
static __always_inline void stateless_event(struct xdp_md *ctx, const struct packet *p,
					    const flow_key_t *forward, const flow_entry_t *entry,
					    __u64 now_ns)
{
	struct event *event = events_reserve();

	if (!event) {
		count(XR_COUNT_event_lost);
		return;
	}
	event_fill(event, ctx, p, XR_EVENT_ESTABLISHED, now_ns);
	shared_key(forward, &event->key);
	event->service = entry->service;
	event->backend = entry->backend;
	event->detail = entry->mode;
	event->reason = entry->reason;
	event->seen_ns = now_ns;
	events_submit(event);
}

/*
 * Both entries, as promote() makes them; what is followed begins with this segment.
 * `forward` is the key of the client's direction. Returns 0, or an error: it stays as it is.
 */
static __always_inline long stateless_promote(struct xdp_md *ctx, const struct packet *p,
					      struct scratch *scratch, flow_key_t *forward,
					      const struct service *service,
					      const struct backend_ref *ref, const struct way *way,
					      const struct rewrite *to, __u64 now_ns)
{
	flow_entry_t *entry = &scratch->entry;
	flow_key_t *reply = &scratch->keys[1];
	__u16 vlan = stateless_vlan(ref->backend);
	long result;

	*reply = p->key;
	__builtin_memset(entry, 0, sizeof(*entry));
	entry->last_seen_ns = now_ns;
	entry->packets = 1;
	entry->bytes = p->ip_len;
	entry->seq_next = p->seq + segment_length(p);
	entry->ack = p->ack;
	entry->window = (__u32)p->window << STATELESS_WSCALE;
	entry->flags = (p->flags & TCP_FIN ? XR_FLOW_FIN : 0) | (vlan ? XR_FLOW_STAGE : 0);
	entry->vlan = vlan;
	entry->state = XR_TCP_ESTABLISHED;
	entry->wscale = STATELESS_WSCALE;
	entry->direction = XR_DIR_REPLY;
	entry->new_saddr = forward->daddr;
	entry->new_daddr = forward->saddr;
	entry->new_sport = forward->dport;
	entry->new_dport = forward->sport;
	entry->l3_delta = to->l3_delta;
	entry->l4_delta = to->l4_delta;
	entry->backend = ref->backend;
	entry->service = ref->service;
	entry->ifindex = way->ifindex;
	mac_copy(entry->in_mac, p->eth->h_dest);
	mac_copy(entry->dmac, way->dmac);
	mac_copy(entry->smac, way->smac);
	entry->mode = XR_MODE_HASH;
	entry->reason = XR_REASON_STATELESS;
	entry->seen_ns = now_ns;
	result = flow_table_insert(reply, entry);
	if (result)
		return result;

	entry->packets = 0;
	entry->bytes = 0;
	entry->flags = vlan ? XR_FLOW_STAGE : 0;
	entry->vlan = XR_VLAN_KEEP;
	entry->open = 1;
	entry->seq_next = p->ack;
	entry->ack = p->seq;
	entry->window = 0xffffU << STATELESS_WSCALE;
	entry->direction = XR_DIR_FORWARD;
	entry->new_saddr = forward->saddr;
	entry->new_daddr = reply->saddr;
	entry->new_sport = forward->sport;
	entry->new_dport = reply->sport;
	entry->l3_delta = ~to->l3_delta; /* the way back: one's complement */
	entry->l4_delta = ~to->l4_delta;
	mac_copy(entry->in_mac, way->smac);
	result = flow_table_insert(forward, entry);
	if (result) {
		flow_table_delete(reply);
		return result;
	}
	count(XR_COUNT_stateless_promoted);
	flow_opened(ref->service, ref->backend);
	affinity_note(forward, service, ref->backend, now_ns);
	stateless_event(ctx, p, forward, entry, now_ns);
	return 0;
}

/*
 * A bare ACK of the backend: as a flow that is proven, but for its client, see proven_speaks().
 * `forward` is the key of the client's direction, and becomes that of FORWARD.
 */
static __always_inline void stateless_note(const struct packet *p, struct scratch *scratch,
					   flow_key_t *forward, const struct backend_ref *ref,
					   const struct way *way, __u64 window_ns, __u64 now_ns)
{
	pending_flow_t *value = &scratch->pending;
	flow_key_t *reply = &scratch->keys[1];

	*reply = p->key;
	reply->kind = XR_KIND_REPLY;
	forward->kind = XR_KIND_FORWARD;
	forget_last_flood(reply);
	forget_last_flood(forward);
	extend_flood(window_ns, now_ns);
	__builtin_memset(value, 0, sizeof(*value));
	value->seen_ns = now_ns;
	value->last_seen_ns = now_ns;
	value->backend = ref->backend;
	value->service = ref->service;
	value->ifindex = way->ifindex;
	value->vlan = stateless_vlan(ref->backend);
	value->new_saddr = forward->daddr;
	value->new_daddr = forward->saddr;
	value->new_sport = forward->dport;
	value->new_dport = forward->sport;
	mac_copy(value->dmac, way->dmac);
	mac_copy(value->smac, way->smac);
	value->wscale = STATELESS_WSCALE;
	value->flags = XR_PENDING_SYNACK | XR_PENDING_PROVEN;
	value->mode = XR_MODE_HASH;
	value->reason = XR_REASON_STATELESS;
	value->window = (__u32)p->window << STATELESS_WSCALE;
	value->seq = p->seq;
	value->ack = p->ack;
	if (flood_flows_insert(reply, value))
		return;
	value->new_saddr = forward->saddr;
	value->new_daddr = reply->saddr;
	value->new_sport = forward->sport;
	value->new_dport = reply->sport;
	value->flags = XR_PENDING_PROVEN;
	value->seq = 0; /* no later SYN */
	value->ack = 0;
	if (flood_flows_insert(forward, value))
		flood_flows_delete(reply);
	else
		count(XR_COUNT_flood_entry);
}

/* Is the client's flow another backend's, or being decided? Then this one's segment is stale. */
static __always_inline int is_bound_elsewhere(flow_key_t *forward, __u32 backend)
{
	flow_entry_t *flow = flow_table_lookup(forward);
	pending_flow_t *entry;
	int stale;

	if (!flow)
		flow = previous_lookup(forward);
	if (flow)
		return flow->backend != backend;
	forward->kind = XR_KIND_FORWARD;
	entry = pending_lookup(forward);
	stale = entry && entry->backend != backend;
	if (!entry) {
		forward->kind = XR_KIND_SEEN;
		stale = !!pending_flows_lookup(forward);
	}
	forward->kind = XR_KIND_NONE;
	return stale;
}

/* A backend's segment that no entry knows: from the service, if it is of a stateless one. */
static __always_inline int stateless_reply(struct xdp_md *ctx, struct packet *p, struct rewrite *to)
{
	struct control *control = control_lookup();
	struct backend_ref *ref = backend_of_source(p, control);
	struct scratch *scratch = scratch_lookup(ctx);
	__u64 now_ns = clock_precise();
	struct backend *backend;
	struct service *service;
	struct way way = {};
	flow_key_t *forward;
	__u32 mtu;
	int found;

	backend = ref ? backends_lookup(ref->backend) : 0;
	if (!backend || !scratch || !control)
		return pass(XR_COUNT_pass_not_service);
	to->saddr = own_addr(&backend->stateless_addr);
	if (addr_equal(to->saddr, no_addr()) || !service_is_stateless(ref->service, now_ns))
		return pass(XR_COUNT_pass_not_service);
	to->daddr = p->key.daddr;
	to->sport = backend->stateless_port ? backend->stateless_port : p->key.sport;
	to->dport = p->key.dport;
	to->l3_delta = csum_delta_addrs(&p->key, to->saddr, to->daddr);
	to->l4_delta = csum_delta_l4(&p->key, to->l3_delta, to->sport, to->dport);
	forward = &scratch->keys[0];
	forward->saddr = to->daddr;
	forward->daddr = to->saddr;
	forward->sport = to->dport;
	forward->dport = to->sport;
	forward->proto = p->key.proto;
	forward->kind = XR_KIND_NONE;
	forward->pad = 0;
	service = service_of_flow(forward); /* of many ports maybe not of this one */
	if (!service || service->id != ref->service || is_bound_elsewhere(forward, ref->backend))
		return pass(XR_COUNT_pass_not_service);

	found = find_way(ctx, p, to, &way);
	if (found == WAY_NOT_OURS)
		return pass(XR_COUNT_pass_not_service);
	if (found == WAY_NONE)
		return drop(XR_COUNT_no_path);
	mtu = is_long(p, control) ? unfit_mtu(ctx, p, way.ifindex, handoff_to_client(way.ifindex))
				  : 0;
	if (mtu)
		return too_big(ctx, p, mtu);
	if (way.ifindex && backend->ifindex == ctx->ingress_ifindex &&
	    (p->flags & (TCP_ACK | TCP_SYN | TCP_RST)) == TCP_ACK) {
		if (p->payload || (p->flags & TCP_FIN)) {
			long result = stateless_promote(ctx, p, scratch, forward, service, ref,
							&way, to, now_ns);

			/* EEXIST: another CPU was first, or the client has another flow there */
			if (result == E2BIG_RESULT) {
				count(XR_COUNT_promote_table_full);
				note_table_full(now_ns);
				extend_stateless(ref->service, control->orphan_window_ns, now_ns,
						 0);
			} else if (result == EEXIST_RESULT) {
				count(XR_COUNT_promote_conflict);
			}
		} else {
			stateless_note(p, scratch, forward, ref, &way, control->orphan_window_ns,
				       now_ns);
		}
	}
	count(XR_COUNT_stateless_replied);
	if (found == WAY_KERNEL)
		return hand_to_kernel(ctx, p, to, XR_IF_HANDOFF_REPLY);
	return send_to_client(ctx, p, to, way.dmac, way.smac, way.ifindex,
			      stateless_vlan(ref->backend));
}

static __always_inline int flood_stage(struct xdp_md *ctx)
{
	struct service *service;
	struct rewrite to;
	struct packet p;
	int parsed;

	parsed = parse_packet(ctx, &p);
	if (parsed == PARSE_UDP)
		return flood_datagram(ctx, &p);
	if (parsed != PARSE_TCP)
		return XDP_PASS;
	to.udp = 0;
	to.later_fragment = 0;
	service = service_of(&p);
	return service ? stateless_forward(ctx, &p, service, &to) : stateless_reply(ctx, &p, &to);
}

/* stage_reply found nothing about a backend's segment. */
static __always_inline int reply_without_entry(struct xdp_md *ctx, const struct packet *p,
					       __u64 now_ns)
{
	struct backend_ref *ref = backend_of_source(p, control_lookup());

	if (ref && service_is_stateless(ref->service, now_ns))
		stages_call(ctx, XR_STAGE_FLOOD);
	return pass(XR_COUNT_pass_not_service); /* maybe not ours: never dropped unseen */
}

#endif
