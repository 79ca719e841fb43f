/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Tables of flows in bcc's dialect; a program is of one family, and has that one's. */
#ifndef XR_FLOW_MAPS_BCC_H
#define XR_FLOW_MAPS_BCC_H

#if XR_FAMILY == 6

BPF_TABLE("lru_hash", struct flow_key6, struct pending_flow6, pending_flows6, 1);
BPF_TABLE("hash", struct flow_key6, struct flow_entry6, flow_table6, 1);
BPF_TABLE("lru_hash", struct flow_key6, struct pending_flow6, flood_flows6, 1);
BPF_ARRAY_OF_MAPS(previous6, "flow_table6", 1);

static __always_inline pending_flow_t *pending_flows_lookup(flow_key_t *key)
{
	return pending_flows6.lookup(key);
}

static __always_inline int pending_flows_insert(flow_key_t *key, pending_flow_t *value)
{
	return pending_flows6.insert(key, value);
}

static __always_inline void pending_flows_delete(flow_key_t *key)
{
	pending_flows6.delete(key);
}

static __always_inline flow_entry_t *flow_table_lookup(flow_key_t *key)
{
	return flow_table6.lookup(key);
}

static __always_inline int flow_table_insert(flow_key_t *key, flow_entry_t *value)
{
	return flow_table6.insert(key, value);
}

static __always_inline int flow_table_delete(flow_key_t *key)
{
	return flow_table6.delete(key);
}

static __always_inline pending_flow_t *flood_flows_lookup(flow_key_t *key)
{
	return flood_flows6.lookup(key);
}

static __always_inline int flood_flows_insert(flow_key_t *key, pending_flow_t *value)
{
	return flood_flows6.insert(key, value);
}

static __always_inline void flood_flows_delete(flow_key_t *key)
{
	flood_flows6.delete(key);
}

static __always_inline void *previous_table(void)
{
	int zero = 0;

	return previous6.lookup(&zero);
}

#else

BPF_TABLE("lru_hash", struct flow_key, struct pending_flow, pending_flows, 1);
BPF_TABLE("hash", struct flow_key, struct flow_entry, flow_table, 1);
BPF_TABLE("lru_hash", struct flow_key, struct pending_flow, flood_flows, 1);
BPF_ARRAY_OF_MAPS(previous, "flow_table", 1);

static __always_inline pending_flow_t *pending_flows_lookup(flow_key_t *key)
{
	return pending_flows.lookup(key);
}

static __always_inline int pending_flows_insert(flow_key_t *key, pending_flow_t *value)
{
	return pending_flows.insert(key, value);
}

static __always_inline void pending_flows_delete(flow_key_t *key)
{
	pending_flows.delete(key);
}

static __always_inline flow_entry_t *flow_table_lookup(flow_key_t *key)
{
	return flow_table.lookup(key);
}

static __always_inline int flow_table_insert(flow_key_t *key, flow_entry_t *value)
{
	return flow_table.insert(key, value);
}

static __always_inline int flow_table_delete(flow_key_t *key)
{
	return flow_table.delete(key);
}

static __always_inline pending_flow_t *flood_flows_lookup(flow_key_t *key)
{
	return flood_flows.lookup(key);
}

static __always_inline int flood_flows_insert(flow_key_t *key, pending_flow_t *value)
{
	return flood_flows.insert(key, value);
}

static __always_inline void flood_flows_delete(flow_key_t *key)
{
	flood_flows.delete(key);
}

static __always_inline void *previous_table(void)
{
	int zero = 0;

	return previous.lookup(&zero);
}

#endif /* family */

/* `table`: what previous_table() gave. */
static __always_inline flow_entry_t *previous_entry(void *table, flow_key_t *key)
{
	return bpf_map_lookup_elem(table, key);
}

static __always_inline int previous_delete(void *table, flow_key_t *key)
{
	return bpf_map_delete_elem(table, key);
}

#endif
