/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * stage_previous: after a change of its size flow_table is another one, and flows are still in
 * the one of before, until they say something or the daemon has moved them. Whoever inserts a
 * flow's FORWARD into the new table removes it from the former; whoever finds it there has been
 * too late, and removes nothing. So a flow is in one of the two at every moment, new one first.
 */
#ifndef XR_PREVIOUS_H
#define XR_PREVIOUS_H

#include "flow.h"
#include "nat_ports.h"
#include "udp.h"

/* The other direction's entry, likewise in the table of before; see peer_of(). */
static __always_inline flow_entry_t *previous_peer(void *table, const flow_key_t *key,
						   const flow_entry_t *flow, flow_key_t *other)
{
	flow_entry_t *peer;

	peer_key(flow, key->proto, other);
	if (is_one_sided(flow))
		return 0;
	peer = previous_entry(table, other);
	if (!peer || !addr_equal(peer->new_saddr, key->daddr) || peer->new_sport != key->dport ||
	    !addr_equal(peer->new_daddr, key->saddr) || peer->new_dport != key->sport)
		return 0;
	return peer;
}

/*
 * Moves a flow, or the half of it that there is: REPLY first, then FORWARD, as promote() does. 0
 * when it is in the new table, by us or by somebody else; else why there is no place for it there.
 */
static __always_inline int move_pair(void *table, flow_key_t *first, flow_entry_t *reply,
				     flow_key_t *last, flow_entry_t *forward)
{
	int result, before = flow_table_insert(first, reply);

	if (before && before != EEXIST_RESULT)
		return before;
	result = flow_table_insert(last, forward);
	if (result == EEXIST_RESULT)
		return 0;
	if (result) {
		if (!before)
			flow_table_delete(first);
		return result;
	}
	previous_delete(table, last);
	if (before) { /* who had put it there may find no room for FORWARD, and take it out again */
		flow_table_insert(first, reply);
		return 0; /* so the former's is left: to the backend's next packet, or the daemon */
	}
	previous_delete(table, first);
	return 0;
}

static __always_inline int move_half(void *table, flow_key_t *key, flow_entry_t *flow)
{
	int result = flow_table_insert(key, flow);

	if (result)
		return result == EEXIST_RESULT ? 0 : result;
	previous_delete(table, key);
	return 0;
}

/*
 * Not before all interfaces have this program: one that has the former one looks for the flow in
 * the former table.
 */
static __always_inline int is_on_hold(void)
{
	struct control *control = control_lookup();

	return control && (control->flags & XR_CONTROL_HOLD);
}

static __always_inline int move_flow(void *table, flow_key_t *key, flow_entry_t *flow)
{
	flow_key_t other;
	flow_entry_t *peer = previous_peer(table, key, flow, &other);

	if (!peer)
		return move_half(table, key, flow);
	if (flow->direction == XR_DIR_FORWARD)
		return move_pair(table, &other, peer, key, flow);
	return move_pair(table, key, flow, &other, peer);
}

/* It has a place in flow_table: on as the packet of an established flow that it is. */
static __always_inline int go_on_moved(struct xdp_md *ctx, const struct packet *p, int udp,
				       __u8 direction)
{
	if (udp)
		return go_to_stage(ctx, XR_STAGE_UDP);
	if (p->flags & TCP_SYN) {
		if (direction == XR_DIR_REPLY)
			return go_to_stage(ctx, XR_STAGE_REPLY);
		if (!(p->flags & (TCP_ACK | TCP_RST | TCP_FIN)))
			return go_to_stage(ctx, XR_STAGE_SYN_BOUND);
	}
	return go_to_stage(ctx, XR_STAGE_BOUND);
}

static __always_inline int previous_stage(struct xdp_md *ctx)
{
	flow_entry_t *flow = 0;
	struct packet p;
	__u8 direction;
	void *table;
	int parsed, ours;

	parsed = parse_packet(ctx, &p);
	if (parsed != PARSE_TCP && parsed != PARSE_UDP)
		return XDP_PASS;
	ours = is_our_mac(ctx, p.eth);
	table = previous_table();
	if (table)
		flow = previous_entry(table, &p.key);
	if (!ours && !(flow && mac_equal(p.eth->h_dest, flow->in_mac)))
		return pass(XR_COUNT_pass_other_mac);
	if (flow) {
		direction = flow->direction;
		if (!is_on_hold()) {
			if (!move_flow(table, &p.key, flow)) {
				count(XR_COUNT_flow_moved);
				return go_on_moved(ctx, &p, parsed == PARSE_UDP, direction);
			}
			/* It stays where it is until there is room: the daemon tries again. */
			count(XR_COUNT_flow_not_moved);
		}
		if (parsed == PARSE_UDP)
			return udp_flow_packet(ctx, &p, flow, table);
		return flow_long_packet(ctx, &p, flow, table);
	}
	flow = flow_table_lookup(&p.key); /* moved since the first look */
	if (flow)
		return go_on_moved(ctx, &p, parsed == PARSE_UDP, flow->direction);
	return parsed == PARSE_UDP ? udp_new(ctx, &p) : classify_new(ctx, &p);
}

#endif
