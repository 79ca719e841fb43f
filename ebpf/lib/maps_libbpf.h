/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* libbpf's maps, by their type information. */
#ifndef XR_MAPS_LIBBPF_H
#define XR_MAPS_LIBBPF_H

#include <bpf/bpf_helpers.h>

#define XR_SEC SEC("xdp")
#define XR_SEC_LOOKUP SEC("sk_lookup")

char _license[] SEC("license") = "Dual BSD/GPL";

#define XR_MAP(map, map_type, key_type, value_type)                                                \
	struct {                                                                                   \
		__uint(type, map_type);                                                            \
		__uint(max_entries, 1);                                                            \
		__type(key, key_type);                                                             \
		__type(value, value_type);                                                         \
	} map SEC(".maps")

XR_MAP(services, BPF_MAP_TYPE_HASH, struct endpoint_key, struct service);
XR_MAP(backends, BPF_MAP_TYPE_ARRAY, __u32, struct backend);
XR_MAP(backend_index, BPF_MAP_TYPE_HASH, struct endpoint_key, struct backend_ref);
XR_MAP(hash_tables, BPF_MAP_TYPE_ARRAY, __u32, struct hash_table);
XR_MAP(service_ranges, BPF_MAP_TYPE_HASH, struct range_key, struct port_ranges);
XR_MAP(fragments, BPF_MAP_TYPE_LRU_HASH, struct fragment_key, struct fragment);
XR_MAP(path_mtus, BPF_MAP_TYPE_LRU_HASH, struct prefix_key, struct path_mtu);
XR_MAP(quic_ids, BPF_MAP_TYPE_LRU_HASH, struct quic_key, struct sticky);
XR_MAP(affinity, BPF_MAP_TYPE_LRU_HASH, struct affinity_key, struct sticky);
XR_MAP(companions, BPF_MAP_TYPE_LRU_HASH, struct affinity_key, struct sticky);
XR_MAP(usage, BPF_MAP_TYPE_ARRAY, __u32, struct usage);
XR_MAP(usage_aged, BPF_MAP_TYPE_ARRAY, __u32, __u64);
XR_MAP(pick_tables, BPF_MAP_TYPE_ARRAY, __u32, struct pick_table);
XR_MAP(picks, BPF_MAP_TYPE_ARRAY, __u32, struct picks);
XR_MAP(backend_load, BPF_MAP_TYPE_ARRAY, __u32, struct backend_load);
XR_MAP(backend_aged, BPF_MAP_TYPE_ARRAY, __u32, __u64);
XR_MAP(backend_signs, BPF_MAP_TYPE_ARRAY, __u32, struct backend_signs);
XR_MAP(traffic_ended, BPF_MAP_TYPE_ARRAY, __u32, struct traffic);

/* Tries of the kernel are never preallocated. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct source_key);
	__type(value, __u32);
} source_rules SEC(".maps");
XR_MAP(tokens, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct token_bucket);
XR_MAP(prefix_tokens, BPF_MAP_TYPE_LRU_HASH, struct prefix_key, struct token_bucket);
XR_MAP(event_shares, BPF_MAP_TYPE_ARRAY, __u32, struct event_share);
XR_MAP(pressure, BPF_MAP_TYPE_ARRAY, __u32, struct pressure);
XR_MAP(leaving, BPF_MAP_TYPE_ARRAY, __u32, __u64);
XR_MAP(counters, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, __u64);
XR_MAP(interfaces, BPF_MAP_TYPE_HASH, __u32, struct interface);
XR_MAP(scratch, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct scratch);

#ifdef XR_GATEWAY_LOOKUP
XR_MAP(gateway_sockets, BPF_MAP_TYPE_SOCKHASH, __u32, __u64);

static __always_inline struct bpf_sock *gateway_sockets_lookup(__u32 service)
{
	return bpf_map_lookup_elem(&gateway_sockets, &service);
}
#endif

/* The declared size carries the ABI version, which the loader compares. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, XR_ABI_VERSION);
	__type(key, __u32);
	__type(value, struct control);
} control SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, XR_STAGES_ALL);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} stages SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} first_packet_events SEC(".maps");

static __always_inline struct service *services_lookup(struct endpoint_key *key)
{
	return bpf_map_lookup_elem(&services, key);
}

static __always_inline struct backend *backends_lookup(__u32 id)
{
	return bpf_map_lookup_elem(&backends, &id);
}

static __always_inline struct backend_ref *backend_index_lookup(struct endpoint_key *key)
{
	return bpf_map_lookup_elem(&backend_index, key);
}

static __always_inline struct hash_table *hash_tables_lookup(__u32 index)
{
	return bpf_map_lookup_elem(&hash_tables, &index);
}

static __always_inline struct token_bucket *tokens_lookup(__u32 index)
{
	return bpf_map_lookup_elem(&tokens, &index);
}

static __always_inline struct token_bucket *prefix_tokens_lookup(struct prefix_key *key)
{
	return bpf_map_lookup_elem(&prefix_tokens, key);
}

static __always_inline int prefix_tokens_insert(struct prefix_key *key, struct token_bucket *value)
{
	return bpf_map_update_elem(&prefix_tokens, key, value, BPF_NOEXIST);
}

static __always_inline struct event_share *event_shares_lookup(__u32 cpu)
{
	return bpf_map_lookup_elem(&event_shares, &cpu);
}

static __always_inline __u64 *leaving_lookup(__u32 index)
{
	return bpf_map_lookup_elem(&leaving, &index);
}

static __always_inline struct pressure *pressure_lookup(__u32 index)
{
	return bpf_map_lookup_elem(&pressure, &index);
}

static __always_inline __u64 *counters_lookup(__u32 index)
{
	return bpf_map_lookup_elem(&counters, &index);
}

static __always_inline struct control *control_lookup(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&control, &zero);
}

static __always_inline struct interface *interfaces_lookup(__u32 ifindex)
{
	return bpf_map_lookup_elem(&interfaces, &ifindex);
}

static __always_inline struct scratch *scratch_slot_lookup(__u32 slot)
{
	return bpf_map_lookup_elem(&scratch, &slot);
}

static __always_inline void any_stage_call(struct xdp_md *ctx, __u32 stage)
{
	bpf_tail_call(ctx, &stages, stage);
}

static __always_inline __u64 events_waiting(void)
{
	return bpf_ringbuf_query(&first_packet_events, BPF_RB_AVAIL_DATA);
}

static __always_inline struct event *events_reserve(void)
{
	return bpf_ringbuf_reserve(&first_packet_events, sizeof(struct event), 0);
}

static __always_inline struct event_compared *events_reserve_compared(void)
{
	return bpf_ringbuf_reserve(&first_packet_events, sizeof(struct event_compared), 0);
}

static __always_inline struct event_small *events_reserve_small(void)
{
	return bpf_ringbuf_reserve(&first_packet_events, sizeof(struct event_small), 0);
}

static __always_inline struct event_large *events_reserve_large(void)
{
	return bpf_ringbuf_reserve(&first_packet_events, sizeof(struct event_large), 0);
}

static __always_inline void events_submit(void *record)
{
	bpf_ringbuf_submit(record, 0);
}

static __always_inline void events_discard(void *record)
{
	bpf_ringbuf_discard(record, 0);
}

static __always_inline struct port_ranges *service_ranges_lookup(struct range_key *key)
{
	return bpf_map_lookup_elem(&service_ranges, key);
}

static __always_inline struct fragment *fragments_lookup(struct fragment_key *key)
{
	return bpf_map_lookup_elem(&fragments, key);
}

static __always_inline void fragments_delete(struct fragment_key *key)
{
	bpf_map_delete_elem(&fragments, key);
}

static __always_inline int fragments_put(struct fragment_key *key, struct fragment *value)
{
	return bpf_map_update_elem(&fragments, key, value, BPF_ANY);
}

static __always_inline struct path_mtu *path_mtus_lookup(struct prefix_key *key)
{
	return bpf_map_lookup_elem(&path_mtus, key);
}

static __always_inline int path_mtus_put(struct prefix_key *key, struct path_mtu *value)
{
	return bpf_map_update_elem(&path_mtus, key, value, BPF_ANY);
}

static __always_inline struct sticky *quic_ids_lookup(struct quic_key *key)
{
	return bpf_map_lookup_elem(&quic_ids, key);
}

static __always_inline int quic_ids_put(struct quic_key *key, struct sticky *value)
{
	return bpf_map_update_elem(&quic_ids, key, value, BPF_ANY);
}

static __always_inline struct sticky *affinity_lookup(struct affinity_key *key)
{
	return bpf_map_lookup_elem(&affinity, key);
}

static __always_inline int affinity_put(struct affinity_key *key, struct sticky *value)
{
	return bpf_map_update_elem(&affinity, key, value, BPF_ANY);
}

static __always_inline struct sticky *companions_lookup(struct affinity_key *key)
{
	return bpf_map_lookup_elem(&companions, key);
}

static __always_inline int companions_put(struct affinity_key *key, struct sticky *value)
{
	return bpf_map_update_elem(&companions, key, value, BPF_ANY);
}

static __always_inline __u32 *source_rules_lookup(struct source_key *key)
{
	return bpf_map_lookup_elem(&source_rules, key);
}

static __always_inline struct usage *usage_lookup(__u32 service)
{
	return bpf_map_lookup_elem(&usage, &service);
}

static __always_inline __u64 *usage_aged_lookup(__u32 service)
{
	return bpf_map_lookup_elem(&usage_aged, &service);
}

static __always_inline struct pick_table *pick_tables_lookup(__u32 index)
{
	return bpf_map_lookup_elem(&pick_tables, &index);
}

static __always_inline struct picks *picks_lookup(__u32 service)
{
	return bpf_map_lookup_elem(&picks, &service);
}

static __always_inline struct backend_load *backend_load_lookup(__u32 backend)
{
	return bpf_map_lookup_elem(&backend_load, &backend);
}

static __always_inline __u64 *backend_aged_lookup(__u32 backend)
{
	return bpf_map_lookup_elem(&backend_aged, &backend);
}

static __always_inline struct backend_signs *backend_signs_lookup(__u32 backend)
{
	return bpf_map_lookup_elem(&backend_signs, &backend);
}

static __always_inline struct traffic *traffic_ended_lookup(__u32 backend)
{
	return bpf_map_lookup_elem(&traffic_ended, &backend);
}

#endif
