/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Established flows of a service, as they come and go. Whoever takes a flow's FORWARD entry out
 * of flow_table counts it, once: the delete says who that was. What the daemon ages out it
 * counts itself, in usage_aged.
 */
#ifndef XR_USAGE_H
#define XR_USAGE_H

#include "load.h"

static __always_inline void flow_opened(__u32 service, __u32 backend)
{
	struct usage *usage = usage_lookup(service);

	load_opened(backend);
	if (usage)
		__sync_fetch_and_add(&usage->opened, 1);
}

/* What a flow has carried, before its entries go: a deleted one is another one's at once. */
static __always_inline void flow_carried(const flow_entry_t *forward, const flow_entry_t *reply,
					 struct traffic *carried)
{
	carried->packets = forward->packets;
	carried->bytes = forward->bytes;
	carried->reply_packets = reply ? reply->packets : 0;
	carried->reply_bytes = reply ? reply->bytes : 0;
}

/* `table`: what previous_table() gave, for a flow that is still in that one; 0: flow_table. */
static __always_inline int flow_delete_in(void *table, flow_key_t *key)
{
	return table ? previous_delete(table, key) : flow_table_delete(key);
}

/* Takes a flow out of its table; `forward` is the key of its FORWARD entry. */
static __always_inline void flow_close_in(void *table, flow_key_t *forward, flow_entry_t *entry,
					  const struct traffic *carried)
{
	struct usage *usage = usage_lookup(entry->service);
	struct traffic *ended = traffic_ended_lookup(entry->backend);

	flow_leaves(entry); /* behind the delete it may be another flow's */
	if (flow_delete_in(table, forward))
		return;
	if (usage)
		__sync_fetch_and_add(&usage->closed, 1);
	if (!ended)
		return;
	__sync_fetch_and_add(&ended->flows, 1);
	__sync_fetch_and_add(&ended->packets, carried->packets);
	__sync_fetch_and_add(&ended->bytes, carried->bytes);
	__sync_fetch_and_add(&ended->reply_packets, carried->reply_packets);
	__sync_fetch_and_add(&ended->reply_bytes, carried->reply_bytes);
}

static __always_inline void flow_table_close(flow_key_t *forward, flow_entry_t *entry,
					     const struct traffic *carried)
{
	flow_close_in(0, forward, entry, carried);
}

/* How many a service has. Two that come and go at one moment may be seen in part. */
static __always_inline __u64 flows_open(__u32 service)
{
	struct usage *usage = usage_lookup(service);
	__u64 *aged = usage_aged_lookup(service);
	__s64 open;

	if (!usage || !aged)
		return 0;
	open = usage->opened - usage->closed - *aged;
	return open > 0 ? open : 0;
}

#endif
