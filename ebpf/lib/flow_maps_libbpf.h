/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Tables of flows in libbpf's dialect; a program is of one family, and has that one's. */
#ifndef XR_FLOW_MAPS_LIBBPF_H
#define XR_FLOW_MAPS_LIBBPF_H

/* One place for a map of this kind, or for none. */
#define XR_MAP_OF_MAPS(map, key_type, value_type)                                                  \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);                                          \
		__uint(max_entries, 1);                                                            \
		__type(key, __u32);                                                                \
		__array(                                                                           \
			values, struct {                                                           \
				__uint(type, BPF_MAP_TYPE_HASH);                                   \
				__uint(max_entries, 1);                                            \
				__type(key, key_type);                                             \
				__type(value, value_type);                                         \
			});                                                                        \
	} map SEC(".maps")

#if XR_FAMILY == 6

XR_MAP(pending_flows6, BPF_MAP_TYPE_LRU_HASH, struct flow_key6, struct pending_flow6);
XR_MAP(flow_table6, BPF_MAP_TYPE_HASH, struct flow_key6, struct flow_entry6);
XR_MAP(flood_flows6, BPF_MAP_TYPE_LRU_HASH, struct flow_key6, struct pending_flow6);
XR_MAP_OF_MAPS(previous6, struct flow_key6, struct flow_entry6);

static __always_inline pending_flow_t *pending_flows_lookup(flow_key_t *key)
{
	return bpf_map_lookup_elem(&pending_flows6, key);
}

static __always_inline int pending_flows_insert(flow_key_t *key, pending_flow_t *value)
{
	return bpf_map_update_elem(&pending_flows6, key, value, BPF_NOEXIST);
}

static __always_inline void pending_flows_delete(flow_key_t *key)
{
	bpf_map_delete_elem(&pending_flows6, key);
}

static __always_inline flow_entry_t *flow_table_lookup(flow_key_t *key)
{
	return bpf_map_lookup_elem(&flow_table6, key);
}

static __always_inline int flow_table_insert(flow_key_t *key, flow_entry_t *value)
{
	return bpf_map_update_elem(&flow_table6, key, value, BPF_NOEXIST);
}

static __always_inline int flow_table_delete(flow_key_t *key)
{
	return bpf_map_delete_elem(&flow_table6, key);
}

static __always_inline pending_flow_t *flood_flows_lookup(flow_key_t *key)
{
	return bpf_map_lookup_elem(&flood_flows6, key);
}

static __always_inline int flood_flows_insert(flow_key_t *key, pending_flow_t *value)
{
	return bpf_map_update_elem(&flood_flows6, key, value, BPF_NOEXIST);
}

static __always_inline void flood_flows_delete(flow_key_t *key)
{
	bpf_map_delete_elem(&flood_flows6, key);
}

static __always_inline void *previous_table(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&previous6, &zero);
}

#else

XR_MAP(pending_flows, BPF_MAP_TYPE_LRU_HASH, struct flow_key, struct pending_flow);
XR_MAP(flow_table, BPF_MAP_TYPE_HASH, struct flow_key, struct flow_entry);
XR_MAP(flood_flows, BPF_MAP_TYPE_LRU_HASH, struct flow_key, struct pending_flow);
XR_MAP_OF_MAPS(previous, struct flow_key, struct flow_entry);

static __always_inline pending_flow_t *pending_flows_lookup(flow_key_t *key)
{
	return bpf_map_lookup_elem(&pending_flows, key);
}

static __always_inline int pending_flows_insert(flow_key_t *key, pending_flow_t *value)
{
	return bpf_map_update_elem(&pending_flows, key, value, BPF_NOEXIST);
}

static __always_inline void pending_flows_delete(flow_key_t *key)
{
	bpf_map_delete_elem(&pending_flows, key);
}

static __always_inline flow_entry_t *flow_table_lookup(flow_key_t *key)
{
	return bpf_map_lookup_elem(&flow_table, key);
}

static __always_inline int flow_table_insert(flow_key_t *key, flow_entry_t *value)
{
	return bpf_map_update_elem(&flow_table, key, value, BPF_NOEXIST);
}

static __always_inline int flow_table_delete(flow_key_t *key)
{
	return bpf_map_delete_elem(&flow_table, key);
}

static __always_inline pending_flow_t *flood_flows_lookup(flow_key_t *key)
{
	return bpf_map_lookup_elem(&flood_flows, key);
}

static __always_inline int flood_flows_insert(flow_key_t *key, pending_flow_t *value)
{
	return bpf_map_update_elem(&flood_flows, key, value, BPF_NOEXIST);
}

static __always_inline void flood_flows_delete(flow_key_t *key)
{
	bpf_map_delete_elem(&flood_flows, key);
}

static __always_inline void *previous_table(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&previous, &zero);
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
