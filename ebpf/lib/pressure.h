/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A full flow_table. Old flows are never touched for a new one: a flow that finds no room
 * stays in pending_flows, and is decided by hash, so that who loses its entries there is
 * hashed to the same backend again.
 */
#ifndef XR_PRESSURE_H
#define XR_PRESSURE_H

#include "clock.h"
#include "maps.h"

/* A table in which a flow found no room counts as full for as long: while new flows keep
 * coming and finding none, all of them are hashed; a second after the last one, one is raced
 * again, and finds out. */
#define TABLE_FULL_NS 1000000000ULL

/* One of the flows without a place in the table asks again, at most every so often. */
#define TABLE_RETRY_NS 10000000ULL

/* Each family has a table of its own: one that is full says nothing of the other. */
static __always_inline __u64 table_full_since(void)
{
	struct pressure *pressure = pressure_lookup(0);

	if (!pressure)
		return 0;
	return XR_FAMILY == 6 ? pressure->table6_full_ns : pressure->table_full_ns;
}

static __always_inline void note_table_full(__u64 now_ns)
{
	struct pressure *pressure = pressure_lookup(0);

	if (!pressure)
		return;
	if (XR_FAMILY == 6)
		pressure->table6_full_ns = now_ns;
	else
		pressure->table_full_ns = now_ns;
}

static __always_inline int table_is_full(__u64 now_ns)
{
	__u64 full_ns = table_full_since();

	return full_ns && !older_than(full_ns, TABLE_FULL_NS, now_ns);
}

static __always_inline int service_is_stateless(__u32 service, __u64 now_ns)
{
	struct pressure *pressure = pressure_lookup(1 + service);

	return pressure && now_ns < pressure->stateless_until_ns;
}

/*
 * From now on for so long segments of the service without a binding are hashed: a flow has
 * spoken that has no place in flow_table, and may be silent as long, or is decided that may
 * lose its entries within its handshake. Written an eighth ahead, not for each packet. `why` is
 * the counter of the budget that was spent, or 0.
 */
static __always_inline void extend_stateless(__u32 service, __u64 window_ns, __u64 now_ns,
					     __u32 why)
{
	struct pressure *pressure = pressure_lookup(1 + service);

	if (!pressure)
		return;
	if (pressure->stateless_until_ns < now_ns + window_ns)
		pressure->stateless_until_ns = now_ns + window_ns + window_ns / 8;
	if (why && pressure->why != why)
		pressure->why = why;
}

#endif
