/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * stage_fragment. Only the first fragment of a datagram has ports: it is noted whose it is, and
 * the later ones go where it went. A first fragment is then handled as the packet that it is.
 * Nothing is put together, and nothing behind the IP header of a later one is looked at.
 */
#ifndef XR_FRAGMENT_H
#define XR_FRAGMENT_H

#include "classify.h"

/* Receivers give a datagram up that is not complete by then (RFC 791, 3.2; 60 s in RFC 8200). */
#define FRAGMENT_NS 30000000000ULL

/* May it be a backend's answer that no entry knows? It makes one, see lib/stateless.h. */
static __always_inline int is_stateless_reply(const struct packet *p)
{
	struct backend_ref *ref = backend_of_source(p, control_lookup());
	struct backend *backend = ref ? backends_lookup(ref->backend) : 0;

	return backend && !addr_equal(own_addr(&backend->stateless_addr), no_addr()) &&
	       service_is_stateless(ref->service, clock_coarse());
}

/* Whose is the first fragment's datagram? */
enum fragment_owner {
	OWNER_NONE = 0,
	OWNER_SERVICE, /* a service's, or a backend's answer */
	OWNER_FULLNAT, /* a client's, whose address its backend does not see */
};

static __always_inline int owner_by_service(const struct packet *p)
{
	struct service *service = may_be_client(p->key.saddr) ? service_of(p) : 0;
	flow_key_t key = p->key;

	if (service)
		return is_fullnat(service) ? OWNER_FULLNAT : OWNER_SERVICE;
	key.kind = XR_KIND_REPLY; /* one without a place in flow_table may last, see lib/proven.h */
	return pending_lookup(&key) || is_stateless_reply(p) ? OWNER_SERVICE : OWNER_NONE;
}

static __always_inline int owner_by_flow(const flow_entry_t *flow)
{
	return flow->direction == XR_DIR_FORWARD && (flow->flags & XR_FLOW_FULLNAT) ? OWNER_FULLNAT
										    : OWNER_SERVICE;
}

/*
 * An id for all fragments of a datagram whose source will be an address of ours: those of other
 * clients have that, too, and may have chosen the same one, and the backend would put the pieces
 * of both together. In turn, so that none comes again before all others. (That two CPUs take
 * the same at once is as likely as two clients doing so who are a few nanoseconds apart.) Never 0.
 */
static __always_inline __u32 next_fragment_id(void)
{
	struct pressure *all = pressure_lookup(0);
	__u32 id = all ? ++all->fragment_ids : bpf_get_prandom_u32();

	return id ? id : 1;
}

static __always_inline void note_fragment(struct xdp_md *ctx, const struct packet *p,
					  struct fragment_key *key, __u32 new_id)
{
	struct fragment fragment = {
		.seen_ns = clock_coarse(),
		.sport = p->key.sport,
		.dport = p->key.dport,
		.proto = p->key.proto,
		.new_id = new_id,
	};

	if (fragments_put(key, &fragment))
		count(XR_COUNT_fragments_full);
	else if (!reinject_meta_of(ctx)) /* else it was counted when it came */
		count(XR_COUNT_fragment_first);
}

/* One that comes twice keeps what it got. */
static __always_inline __u32 new_fragment_id(const struct packet *p, struct fragment_key *key)
{
	struct fragment *before = fragments_lookup(key);

	if (before && before->new_id && before->sport == p->key.sport &&
	    before->dport == p->key.dport &&
	    !older_than(before->seen_ns, FRAGMENT_NS, clock_coarse()))
		return before->new_id;
	return next_fragment_id();
}

static __always_inline int fragment_first(struct xdp_md *ctx, const struct packet *p,
					  struct fragment_key *key, int kind, __u64 id_at)
{
	flow_key_t flow_key = p->key;
	flow_entry_t *flow = flow_table_lookup(&flow_key);
	flow_entry_t *before = flow ? 0 : previous_lookup(&flow_key); /* moved by who comes next */
	int owner = flow     ? owner_by_flow(flow)
		    : before ? owner_by_flow(before)
			     : owner_by_service(p);
	__u32 new_id;

	if (owner == OWNER_NONE) {
		fragments_delete(
			key); /* of an earlier datagram with this id: these are the host's */
		return pass(XR_COUNT_pass_fragment);
	}
	if (kind == PARSE_FRAGMENT_TINY) /* its flags would be behind: nobody sends such */
		return drop(XR_COUNT_fragment_dropped);
	/* Such a one that was held has its new id, and was noted by the former one. */
	if (owner != OWNER_FULLNAT || !reinject_meta_of(ctx)) {
		new_id = owner == OWNER_FULLNAT ? new_fragment_id(p, key) : 0;
		note_fragment(ctx, p, key, new_id);
		if (new_id)
			fragment_renumber(p->ip, (void *)(long)ctx->data_end, id_at, new_id);
	}
	if (kind == PARSE_UDP)
		return go_to_stage(ctx, XR_STAGE_UDP);
	if (!flow)
		return classify_miss(ctx, p);
	if (p->flags & TCP_SYN) {
		if (flow->direction == XR_DIR_REPLY)
			return go_to_stage(ctx, XR_STAGE_REPLY);
		if (!(p->flags & (TCP_ACK | TCP_RST | TCP_FIN)))
			return go_to_stage(ctx, XR_STAGE_SYN_BOUND);
	}
	return go_to_stage(ctx, XR_STAGE_BOUND); /* as any packet of a flow */
}

/* Neither what is too long nor a TTL that has run out is answered (RFC 1812, 4.3.2.7). */
static __always_inline int ends_here(struct xdp_md *ctx, const struct packet *p,
				     const struct control *control, __u32 egress, __u32 capability)
{
	if (p->ip->ttl <= 1) {
		count(XR_COUNT_ttl_exceeded);
		return 1;
	}
	if (is_long(p, control) && unfit_mtu(ctx, p, egress, capability)) {
		count(XR_COUNT_too_big_dropped);
		return 1;
	}
	count(XR_COUNT_fragment_followed);
	return 0;
}

static __always_inline int fragment_to_backend(struct xdp_md *ctx, struct packet *p,
					       const struct rewrite *to, __u32 backend_id,
					       const struct control *control)
{
	struct backend *backend = backends_lookup(backend_id);

	if (ends_here(ctx, p, control, backend ? backend->ifindex : 0, handoff_to_backend(backend)))
		return XDP_DROP;
	return send_to_backend(ctx, p, to, backend_id);
}

static __always_inline int fragment_to_client(struct xdp_md *ctx, struct packet *p,
					      const struct rewrite *to, struct route_back *way,
					      const struct control *control)
{
	if (ends_here(ctx, p, control, way->ifindex, way->capability))
		return XDP_DROP;
	if (way->capability)
		return hand_to_kernel(ctx, p, to, way->capability);
	return send_to_client(ctx, p, to, way->dmac, way->smac, way->ifindex, way->vlan);
}

/* A later fragment of an established flow. */
static __always_inline int fragment_of_flow(struct xdp_md *ctx, struct packet *p,
					    flow_entry_t *flow, const struct control *control)
{
	struct rewrite to = {
		.saddr = flow->new_saddr,
		.daddr = flow->new_daddr,
		.l3_delta = flow->l3_delta,
		.later_fragment = 1,
	};
	struct route_back way = {};

	if (flow->flags & XR_FLOW_KILLED) /* its first was answered */
		return drop(XR_COUNT_fragment_dropped);
	flow->last_seen_ns = control->heartbeat_ns; /* see flow_account() */
	__sync_fetch_and_add(&flow->packets, 1);
	__sync_fetch_and_add(&flow->bytes, p->ip_len);
	if (flow->direction == XR_DIR_FORWARD)
		return fragment_to_backend(ctx, p, &to, flow->backend, control);
	route_by_client(&way, flow->ifindex, flow->dmac, flow->smac, flow->vlan);
	return fragment_to_client(ctx, p, &to, &way, control);
}

/* The same of one that is pending, in either direction. */
static __always_inline int fragment_of_pending(struct xdp_md *ctx, struct packet *p,
					       pending_flow_t *pending,
					       const struct control *control)
{
	struct rewrite to = {
		.saddr = pending->new_saddr,
		.daddr = pending->new_daddr,
		.l3_delta = csum_delta_addrs(&p->key, pending->new_saddr, pending->new_daddr),
		.later_fragment = 1,
	};
	struct route_back way = {};

	if (p->key.proto != IPPROTO_UDP) /* of which it says who is held, and who has spoken */
		pending->packets++;
	pending->bytes += p->ip_len;
	if (p->key.kind == XR_KIND_FORWARD)
		return fragment_to_backend(ctx, p, &to, pending->backend, control);
	route_by_client(&way, pending->ifindex, pending->dmac, pending->smac, pending->vlan);
	return fragment_to_client(ctx, p, &to, &way, control);
}

static __always_inline int fragment_later(struct xdp_md *ctx, struct packet *p,
					  struct fragment_key *key, __u64 id_at)
{
	struct fragment *first = fragments_lookup(key);
	struct control *control = control_lookup();
	pending_flow_t *pending;
	flow_entry_t *flow;

	if (!control || !first || older_than(first->seen_ns, FRAGMENT_NS, clock_coarse()))
		return pass(XR_COUNT_fragment_unknown);
	p->key.saddr = p->ip->saddr;
	p->key.daddr = p->ip->daddr;
	p->key.sport = first->sport;
	p->key.dport = first->dport;
	p->key.proto = first->proto;
	p->key.kind = XR_KIND_NONE;
	p->key.pad = 0;
	flow = flow_table_lookup(&p->key);
	if (!flow)
		flow = previous_lookup(&p->key);
	if (first->new_id)
		fragment_renumber(p->ip, (void *)(long)ctx->data_end, id_at, first->new_id);
	if (flow)
		return fragment_of_flow(ctx, p, flow, control);
	p->key.kind = XR_KIND_FORWARD;
	pending = pending_lookup(&p->key);
	if (!pending) {
		p->key.kind = XR_KIND_REPLY;
		pending = pending_lookup(&p->key);
	}
	/* refused, or its first is still held, or a port of fullnat that rests */
	if (!pending || (pending->flags & (XR_PENDING_REFUSED | XR_PENDING_CLOSED)))
		return drop(XR_COUNT_fragment_dropped);
	return fragment_of_pending(ctx, p, pending, control);
}

static __always_inline int fragment_stage(struct xdp_md *ctx)
{
	struct fragment_key key = {};
	struct fragment_id id = {};
	struct packet p;
	int kind;

	kind = parse_packet(ctx, &p);
	if (kind != PARSE_FRAGMENT_LATER && kind != PARSE_FRAGMENT_TINY && kind != PARSE_TCP &&
	    kind != PARSE_UDP)
		return pass(XR_COUNT_pass_malformed);
	if (!is_our_mac(ctx, p.eth))
		return pass(XR_COUNT_pass_other_mac);
	key.saddr = shared_addr(p.ip->saddr);
	key.daddr = shared_addr(p.ip->daddr);
	if (!fragment_id(p.ip, (void *)(long)ctx->data_end, &id))
		return pass(XR_COUNT_pass_malformed);
	key.id = id.id;
	key.proto = id.protocol;
	if (kind == PARSE_FRAGMENT_LATER)
		return fragment_later(ctx, &p, &key, id.at);
	return fragment_first(ctx, &p, &key, kind, id.at);
}

#endif
