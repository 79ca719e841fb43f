/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* bcc's tables: its rewriter sees calls in the main text only, so never a macro. */
#ifndef XR_MAPS_BCC_H
#define XR_MAPS_BCC_H

#define XR_SEC
#define XR_SEC_LOOKUP

BPF_TABLE("hash", struct endpoint_key, struct service, services, 1);
BPF_TABLE("array", u32, struct backend, backends, 1);
BPF_TABLE("hash", struct endpoint_key, struct backend_ref, backend_index, 1);
BPF_TABLE("array", u32, struct hash_table, hash_tables, 1);
BPF_TABLE("hash", struct range_key, struct port_ranges, service_ranges, 1);
BPF_TABLE("lru_hash", struct fragment_key, struct fragment, fragments, 1);
BPF_TABLE("lru_hash", struct prefix_key, struct path_mtu, path_mtus, 1);
BPF_TABLE("lru_hash", struct quic_key, struct sticky, quic_ids, 1);
BPF_TABLE("lru_hash", struct affinity_key, struct sticky, affinity, 1);
BPF_TABLE("lru_hash", struct affinity_key, struct sticky, companions, 1);
BPF_F_TABLE("lpm_trie", struct source_key, u32, source_rules, 1, BPF_F_NO_PREALLOC);
BPF_TABLE("array", u32, struct usage, usage, 1);
BPF_TABLE("array", u32, u64, usage_aged, 1);
BPF_TABLE("array", u32, struct pick_table, pick_tables, 1);
BPF_TABLE("array", u32, struct picks, picks, 1);
BPF_TABLE("array", u32, struct backend_load, backend_load, 1);
BPF_TABLE("array", u32, u64, backend_aged, 1);
BPF_TABLE("array", u32, struct backend_signs, backend_signs, 1);
BPF_TABLE("array", u32, struct traffic, traffic_ended, 1);
BPF_TABLE("percpu_array", u32, struct token_bucket, tokens, 1);
BPF_TABLE("lru_hash", struct prefix_key, struct token_bucket, prefix_tokens, 1);
BPF_TABLE("array", u32, struct event_share, event_shares, 1);
BPF_TABLE("array", u32, struct pressure, pressure, 1);
BPF_TABLE("array", u32, u64, leaving, 1);
BPF_TABLE("percpu_array", u32, u64, counters, 1);
BPF_TABLE("array", u32, struct control, control, 1);
BPF_TABLE("hash", u32, struct interface, interfaces, 1);
BPF_TABLE("percpu_array", u32, struct scratch, scratch, 1);
BPF_PROG_ARRAY(stages, XR_STAGES_ALL);

/*
 * As BPF_RINGBUF_OUTPUT, with one member more. bcc's rewriter has no call for bpf_ringbuf_query;
 * that of perf_read has the same arguments and result, and its helper gets another name here.
 */
struct first_packet_events_table_t {
	int key;
	u32 leaf;
	void *(*ringbuf_reserve)(u64);
	void (*ringbuf_discard)(void *, u64);
	void (*ringbuf_submit)(void *, u64);
	u64 (*perf_read)(u64);
	u32 max_entries;
};
#define bpf_perf_event_read bpf_ringbuf_query
__attribute__((section("maps/ringbuf"))) struct first_packet_events_table_t first_packet_events = {
	.max_entries = 4096};

#ifdef XR_GATEWAY_LOOKUP
/* bcc's own BPF_SOCKHASH has no lookup. */
struct gateway_sockets_table_t {
	u32 key;
	u64 leaf;
	struct bpf_sock *(*lookup)(u32 *);
	u32 max_entries;
	int flags;
};
__attribute__((section("maps/sockhash"))) struct gateway_sockets_table_t gateway_sockets = {
	.max_entries = 1};

static __always_inline struct bpf_sock *gateway_sockets_lookup(u32 service)
{
	return gateway_sockets.lookup(&service);
}
#endif

static __always_inline struct service *services_lookup(struct endpoint_key *key)
{
	return services.lookup(key);
}

static __always_inline struct backend *backends_lookup(__u32 id)
{
	return backends.lookup(&id);
}

static __always_inline struct backend_ref *backend_index_lookup(struct endpoint_key *key)
{
	return backend_index.lookup(key);
}

static __always_inline struct hash_table *hash_tables_lookup(__u32 index)
{
	return hash_tables.lookup(&index);
}

static __always_inline struct token_bucket *tokens_lookup(__u32 index)
{
	return tokens.lookup(&index);
}

static __always_inline struct token_bucket *prefix_tokens_lookup(struct prefix_key *key)
{
	return prefix_tokens.lookup(key);
}

static __always_inline int prefix_tokens_insert(struct prefix_key *key, struct token_bucket *value)
{
	return prefix_tokens.insert(key, value);
}

static __always_inline struct event_share *event_shares_lookup(__u32 cpu)
{
	return event_shares.lookup(&cpu);
}

static __always_inline __u64 *leaving_lookup(__u32 index)
{
	return leaving.lookup(&index);
}

static __always_inline struct pressure *pressure_lookup(__u32 index)
{
	return pressure.lookup(&index);
}

static __always_inline __u64 *counters_lookup(__u32 index)
{
	return counters.lookup(&index);
}

static __always_inline struct control *control_lookup(void)
{
	__u32 zero = 0;

	return control.lookup(&zero);
}

static __always_inline struct interface *interfaces_lookup(__u32 ifindex)
{
	return interfaces.lookup(&ifindex);
}

static __always_inline struct scratch *scratch_slot_lookup(__u32 slot)
{
	return scratch.lookup(&slot);
}

static __always_inline void any_stage_call(struct xdp_md *ctx, __u32 stage)
{
	stages.call(ctx, stage);
}

/* Bytes that wait to be read, with those of records that are being written. */
static __always_inline __u64 events_waiting(void)
{
	return first_packet_events.perf_read(BPF_RB_AVAIL_DATA);
}

static __always_inline struct event *events_reserve(void)
{
	return first_packet_events.ringbuf_reserve(sizeof(struct event));
}

static __always_inline struct event_compared *events_reserve_compared(void)
{
	return first_packet_events.ringbuf_reserve(sizeof(struct event_compared));
}

static __always_inline struct event_small *events_reserve_small(void)
{
	return first_packet_events.ringbuf_reserve(sizeof(struct event_small));
}

static __always_inline struct event_large *events_reserve_large(void)
{
	return first_packet_events.ringbuf_reserve(sizeof(struct event_large));
}

static __always_inline void events_submit(void *record)
{
	first_packet_events.ringbuf_submit(record, 0);
}

static __always_inline void events_discard(void *record)
{
	first_packet_events.ringbuf_discard(record, 0);
}

static __always_inline struct port_ranges *service_ranges_lookup(struct range_key *key)
{
	return service_ranges.lookup(key);
}

static __always_inline struct fragment *fragments_lookup(struct fragment_key *key)
{
	return fragments.lookup(key);
}

static __always_inline void fragments_delete(struct fragment_key *key)
{
	fragments.delete(key);
}

static __always_inline int fragments_put(struct fragment_key *key, struct fragment *value)
{
	return fragments.update(key, value);
}

static __always_inline struct path_mtu *path_mtus_lookup(struct prefix_key *key)
{
	return path_mtus.lookup(key);
}

static __always_inline int path_mtus_put(struct prefix_key *key, struct path_mtu *value)
{
	return path_mtus.update(key, value);
}

static __always_inline struct sticky *quic_ids_lookup(struct quic_key *key)
{
	return quic_ids.lookup(key);
}

static __always_inline int quic_ids_put(struct quic_key *key, struct sticky *value)
{
	return quic_ids.update(key, value);
}

static __always_inline struct sticky *affinity_lookup(struct affinity_key *key)
{
	return affinity.lookup(key);
}

static __always_inline int affinity_put(struct affinity_key *key, struct sticky *value)
{
	return affinity.update(key, value);
}

static __always_inline struct sticky *companions_lookup(struct affinity_key *key)
{
	return companions.lookup(key);
}

static __always_inline int companions_put(struct affinity_key *key, struct sticky *value)
{
	return companions.update(key, value);
}

static __always_inline __u32 *source_rules_lookup(struct source_key *key)
{
	return source_rules.lookup(key);
}

static __always_inline struct usage *usage_lookup(__u32 service)
{
	return usage.lookup(&service);
}

static __always_inline __u64 *usage_aged_lookup(__u32 service)
{
	return usage_aged.lookup(&service);
}

static __always_inline struct pick_table *pick_tables_lookup(__u32 index)
{
	return pick_tables.lookup(&index);
}

static __always_inline struct picks *picks_lookup(__u32 service)
{
	return picks.lookup(&service);
}

static __always_inline struct backend_load *backend_load_lookup(__u32 backend)
{
	return backend_load.lookup(&backend);
}

static __always_inline __u64 *backend_aged_lookup(__u32 backend)
{
	return backend_aged.lookup(&backend);
}

static __always_inline struct backend_signs *backend_signs_lookup(__u32 backend)
{
	return backend_signs.lookup(&backend);
}

static __always_inline struct traffic *traffic_ended_lookup(__u32 backend)
{
	return traffic_ended.lookup(&backend);
}

#endif
