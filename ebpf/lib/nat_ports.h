/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Source ports of fullnat. A port is had by inserting REPLY, which its tuple is the key of:
 * nobody else has it then. daemon/nat_ports.py has the same rule.
 *
 * What a flow leaves behind keeps its port for a while, because the backend may have the
 * connection in TIME_WAIT: a closed flow's entries are aged late (daemon/aging.py), and when a
 * client comes again on the same ports, REPLY alone stays, marked XR_PENDING_CLOSED.
 */
#ifndef XR_NAT_PORTS_H
#define XR_NAT_PORTS_H

#include "reply_tuple.h"
#include "service.h"

/*
 * 16 ports are tried at one backend: with nine of ten in use, four of five flows find one. Each
 * four are a run of stage_decide of their own: sixteen in one would be twice as much to verify.
 */
#define NAT_TRIES 4
#define NAT_RUNS 4
/* Ranges from here on are walked in steps that differ from flow to flow: no clusters. */
#define NAT_STEPS_FROM 4096

#define EEXIST_RESULT (-17) /* -EEXIST; uapi errno.h is not there for BPF targets */

static __always_inline int is_fullnat(const struct service *service)
{
	return service->forwarding == XR_FORWARD_FULLNAT;
}

static __always_inline int is_nat_port(const struct control *control, __be16 port)
{
	__u16 number = xr_ntohs(port);

	return control->nat_port_min && number >= control->nat_port_min &&
	       number <= control->nat_port_max;
}

/* Does FORWARD rewrite to the tuple that this REPLY key answers? */
static __always_inline int sends_from(const pending_flow_t *forward, const flow_key_t *reply)
{
	return addr_equal(forward->new_saddr, reply->daddr) && forward->new_sport == reply->dport;
}

/*
 * Has an established flow the port, whose REPLY has aged out of pending_flows long ago, or one in
 * the table beside (see lib/flood.h)? Then the REPLY that was inserted goes.
 */
static __always_inline int port_in_use(flow_key_t *reply, const volatile __u8 *flood)
{
	int in_use;

	pending_lookup_in(*flood, reply); /* marks it as used, as in bind_reply() */
	reply->kind = XR_KIND_NONE;
	in_use = flow_table_lookup(reply) || previous_lookup(reply);
	reply->kind = XR_KIND_REPLY;
	in_use = in_use || pending_lookup_beside(*flood, reply);
	if (in_use)
		pending_delete_in(*flood, reply);
	return in_use;
}

#define NAT_PEACE_PART 4

/*
 * Inserts REPLY with the first free port from a random one on; its number is in `reply` then.
 * 0, EEXIST_RESULT when each that was tried is taken, or another error. `flood`, whether it goes
 * into flood_flows, is in a map, and read each time anew: else the verifier walks all tries once
 * for either.
 */
static __always_inline long insert_at_free_port(const struct control *control, flow_key_t *reply,
						pending_flow_t *value, const volatile __u8 *flood)
{
	__u32 size = control->nat_port_max - control->nat_port_min + 1;
	__u32 at = bpf_get_prandom_u32();
	__u32 step = size >= NAT_STEPS_FROM ? at >> 24 | 1 : 1;
	__u32 turn;

	if (!control->nat_port_min)
		return EEXIST_RESULT;
	if (*flood) /* the last quarter is for those that are held, or are decided in peace */
		size -= size / NAT_PEACE_PART;
#pragma unroll
	for (turn = 0; turn < NAT_TRIES; turn++) {
		long result;

		reply->dport = xr_htons(control->nat_port_min + at % size);
		result = pending_insert_in(*flood, reply, value);
		if (!result && !port_in_use(reply, flood))
			return 0;
		if (result && result != EEXIST_RESULT)
			return result;
		count(XR_COUNT_nat_port_taken);
		at += step;
	}
	return EEXIST_RESULT;
}

/* REPLY stays, without a flow: its port rests. */
static __always_inline void rest_reply(pending_flow_t *reply)
{
	reply->flags = XR_PENDING_FULLNAT | XR_PENDING_CLOSED;
	reply->last_seen_ns = clock_coarse();
}

/* The same for an established flow, whose entries go, and whose REPLY may have gone before. */
static __always_inline void rest_port_of(struct xdp_md *ctx, const struct packet *p,
					 const flow_entry_t *forward)
{
	struct scratch *scratch = scratch_lookup(ctx);
	pending_flow_t *value;
	flow_key_t key;

	if (!scratch)
		return;
	peer_key(forward, p->key.proto, &key);
	key.kind = XR_KIND_REPLY;
	value = pending_flows_lookup(&key);
	if (value) {
		if (is_reply_of(p, value))
			rest_reply(value);
		return;
	}
	value = &scratch->pending;
	__builtin_memset(value, 0, sizeof(*value));
	value->seen_ns = forward->seen_ns;
	value->backend = forward->backend;
	value->service = forward->service;
	value->new_saddr = p->key.daddr;
	value->new_daddr = p->key.saddr;
	value->new_sport = p->key.dport;
	value->new_dport = p->key.sport;
	rest_reply(value);
	pending_flows_insert(&key, value);
}

/* Is the REPLY that answers the backend's segment without a flow, or has that another port? */
static __always_inline int is_port_left(const struct packet *p, const pending_flow_t *forward,
					const pending_flow_t *reply)
{
	return (reply->flags & XR_PENDING_FULLNAT) &&
	       ((reply->flags & XR_PENDING_CLOSED) || (forward && !sends_from(forward, &p->key)));
}

/*
 * Is it to a port of ours at the address that the backend, whose endpoint the packet comes from,
 * knows us by? To any other address a backend's host may be a client as everybody is.
 */
static __always_inline int is_to_nat_port(const struct packet *p, const struct control *control,
					  const struct backend_ref *ref)
{
	struct backend *backend;

	if (!ref || !is_nat_port(control, p->key.dport))
		return 0;
	backend = backends_lookup(ref->backend);
	return backend && addr_equal(own_addr(&backend->probe_addr), p->key.daddr);
}

/*
 * A backend's segment to a port of ours that no flow has: its entries were evicted, or they
 * are over. The host's own TCP must not see it, and the backend is to let go of its socket.
 */
static __always_inline int is_for_nat_port(const struct packet *p)
{
	struct control *control = control_lookup();

	return control && is_nat_port(control, p->key.dport) &&
	       is_to_nat_port(p, control, backend_of_source(p, control));
}

#endif
