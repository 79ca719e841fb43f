/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Flows that XDP decides because there are too many have a table of their own: what a flood
 * pushes out is the flood's, never a flow that the daemon holds or whose handshake is under
 * way. The rest of the program asks for both tables here; in peace that is one of them.
 *
 * The two are one arbiter still. Who inserts into one looks into the other afterwards, and
 * withdraws if the flow is there: of two that decide at once at most one goes on.
 */
#ifndef XR_FLOOD_H
#define XR_FLOOD_H

#include "pressure.h"

/*
 * May flood_flows have an entry that somebody needs? By the newest heartbeat, as flow_account():
 * it is late, and stands still without a daemon, so the answer is yes for longer.
 */
static __always_inline int flood_lately(void)
{
	struct pressure *all = pressure_lookup(0);
	struct control *control = control_lookup();

	return all && control && control->heartbeat_ns < all->stateless_until_ns;
}

/* From now on for so long flood_flows is looked into. Before an entry is made there. */
static __always_inline void extend_flood(__u64 window_ns, __u64 now_ns)
{
	struct pressure *all = pressure_lookup(0);

	if (all && all->stateless_until_ns < now_ns + window_ns)
		all->stateless_until_ns = now_ns + window_ns + window_ns / 8;
}

/*
 * A flow is decided: what an earlier flood has left under its key, and nobody has looked at since,
 * would come to light in the next one. Before extend_flood().
 */
static __always_inline void forget_last_flood(flow_key_t *key)
{
	struct pressure *all = pressure_lookup(0);

	if (all && all->stateless_until_ns && !flood_lately()) /* 0: there was none yet */
		flood_flows_delete(key);
}

/* Decided because there are too many: by budget, or by what the daemon can take. */
static __always_inline int is_over_budget(__u8 reason)
{
	return reason == XR_REASON_BUDGET || reason == XR_REASON_BACKLOG ||
	       reason == XR_REASON_RING_FULL;
}

/*
 * Does a decision go into flood_flows? So do those of orphans while there is a flood: segments
 * out of nothing are as easily forged as SYNs.
 */
static __always_inline int belongs_to_flood(__u8 reason)
{
	return is_over_budget(reason) || (reason == XR_REASON_ORPHAN && flood_lately());
}

/*
 * A flow's entry, FORWARD or REPLY, wherever it is, and whether that is flood_flows: the other one
 * is in the same table. SEEN is in pending_flows only.
 */
static __always_inline pending_flow_t *pending_find(flow_key_t *key, int *flood)
{
	pending_flow_t *entry = pending_flows_lookup(key);

	*flood = 0;
	if (entry || !flood_lately())
		return entry;
	*flood = 1;
	return flood_flows_lookup(key);
}

/* The same for a SYN: while there is a flood most are the flood's. */
static __always_inline pending_flow_t *pending_find_flood(flow_key_t *key, int *flood)
{
	pending_flow_t *entry;

	*flood = flood_lately();
	if (*flood) {
		entry = flood_flows_lookup(key);
		if (entry)
			return entry;
		*flood = 0;
	}
	return pending_flows_lookup(key);
}

static __always_inline pending_flow_t *pending_lookup(flow_key_t *key)
{
	int flood;

	return pending_find(key, &flood);
}

static __always_inline void pending_delete(flow_key_t *key)
{
	pending_flows_delete(key);
	if (flood_lately())
		flood_flows_delete(key);
}

/* The same of one of them: `flood` says which. */
static __always_inline pending_flow_t *pending_lookup_in(int flood, flow_key_t *key)
{
	return flood ? flood_flows_lookup(key) : pending_flows_lookup(key);
}

static __always_inline int pending_insert_in(int flood, flow_key_t *key, pending_flow_t *value)
{
	return flood ? flood_flows_insert(key, value) : pending_flows_insert(key, value);
}

static __always_inline void pending_delete_in(int flood, flow_key_t *key)
{
	if (flood)
		flood_flows_delete(key);
	else
		pending_flows_delete(key);
}

/* And of the other one. */
static __always_inline pending_flow_t *pending_lookup_beside(int flood, flow_key_t *key)
{
	if (flood)
		return pending_flows_lookup(key);
	return flood_lately() ? flood_flows_lookup(key) : 0;
}

#endif
