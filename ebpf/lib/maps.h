/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The maps, and one accessor for each access. This is the only place that knows
 * the two dialects: libbpf's BTF maps, and bcc's tables (whose rewriter sees only
 * calls in the main text, so never a macro). User space creates the maps itself and
 * hands them to either loader; sizes other than these are its choice
 * (xdp_router/adapters/map_specs.py).
 *
 * An insert gives an int, for a reason: before Linux 6.4 the verifier puts a function that
 * returns an int in the place of bpf_map_update_elem, so the upper half of the helper's long
 * is no sign, and `== -EEXIST` in 64 bits is never true.
 */
#ifndef XR_MAPS_H
#define XR_MAPS_H

#include "../abi.h"

/* What stage_decide is to do; written by the stage that calls it. */
struct decide_state {
	__u64 now_ns;
	__u64 held_ns; /* since when the first packet waits */
	__u8 reason;   /* enum xr_reason */
	__u8 wscale;
	__u8 take_over; /* reply tuples of flows that are over may be had */
	__u8 attempt;   /* choices that are behind */
	__u8 taken;     /* one of them was good, but for its reply tuple */
	__u8 pad[3];
	__u32 tried; /* the last of them */
	__u32 pad2;
};

/* What stage_icmp_error is to answer; written by the stage that calls it. */
struct icmp_error_state {
	__u8 type;
	__u8 code;
	__u16 mtu; /* of the next hop, RFC 1191 */
	__u32 pad;
};

/* Values too large for the stack are built here; one program runs at a time on a CPU. */
struct scratch {
	struct decide_state decide;
	struct icmp_error_state icmp_error;
	struct pending_flow pending;
	struct flow_entry entry;
};

#ifdef XR_LOADER_BCC

#define XR_SEC

BPF_TABLE("hash", struct endpoint_key, struct service, services, 1);
BPF_TABLE("array", u32, struct backend, backends, 1);
BPF_TABLE("hash", struct endpoint_key, struct backend_ref, backend_index, 1);
BPF_TABLE("array", u32, struct hash_table, hash_tables, 1);
BPF_TABLE("lru_hash", struct flow_key, struct pending_flow, pending_flows, 1);
BPF_TABLE("hash", struct flow_key, struct flow_entry, flow_table, 1);
BPF_TABLE("percpu_array", u32, struct token_bucket, tokens, 1);
BPF_TABLE("lru_hash", struct prefix_key, struct token_bucket, prefix_tokens, 1);
BPF_TABLE("array", u32, struct event_share, event_shares, 1);
BPF_TABLE("array", u32, struct pressure, pressure, 1);
BPF_TABLE("percpu_array", u32, u64, counters, 1);
BPF_TABLE("array", u32, struct control, control, 1);
BPF_TABLE("hash", u32, struct interface, interfaces, 1);
BPF_TABLE("percpu_array", u32, struct scratch, scratch, 1);
BPF_PROG_ARRAY(stages, XR_STAGE_MAX);

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

static __always_inline struct pending_flow *pending_flows_lookup(struct flow_key *key)
{
	return pending_flows.lookup(key);
}

static __always_inline int pending_flows_insert(struct flow_key *key, struct pending_flow *value)
{
	return pending_flows.insert(key, value);
}

static __always_inline void pending_flows_delete(struct flow_key *key)
{
	pending_flows.delete(key);
}

static __always_inline struct flow_entry *flow_table_lookup(struct flow_key *key)
{
	return flow_table.lookup(key);
}

static __always_inline int flow_table_insert(struct flow_key *key, struct flow_entry *value)
{
	return flow_table.insert(key, value);
}

static __always_inline void flow_table_delete(struct flow_key *key)
{
	flow_table.delete(key);
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

static __always_inline struct scratch *scratch_lookup(void)
{
	__u32 zero = 0;

	return scratch.lookup(&zero);
}

static __always_inline void stages_call(struct xdp_md *ctx, __u32 stage)
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

#else /* libbpf */

#include <bpf/bpf_helpers.h>

#define XR_SEC SEC("xdp")

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
XR_MAP(pending_flows, BPF_MAP_TYPE_LRU_HASH, struct flow_key, struct pending_flow);
XR_MAP(flow_table, BPF_MAP_TYPE_HASH, struct flow_key, struct flow_entry);
XR_MAP(tokens, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct token_bucket);
XR_MAP(prefix_tokens, BPF_MAP_TYPE_LRU_HASH, struct prefix_key, struct token_bucket);
XR_MAP(event_shares, BPF_MAP_TYPE_ARRAY, __u32, struct event_share);
XR_MAP(pressure, BPF_MAP_TYPE_ARRAY, __u32, struct pressure);
XR_MAP(counters, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, __u64);
XR_MAP(interfaces, BPF_MAP_TYPE_HASH, __u32, struct interface);
XR_MAP(scratch, BPF_MAP_TYPE_PERCPU_ARRAY, __u32, struct scratch);

/* The declared size carries the ABI version, which the loader compares. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, XR_ABI_VERSION);
	__type(key, __u32);
	__type(value, struct control);
} control SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, XR_STAGE_MAX);
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

static __always_inline struct pending_flow *pending_flows_lookup(struct flow_key *key)
{
	return bpf_map_lookup_elem(&pending_flows, key);
}

static __always_inline int pending_flows_insert(struct flow_key *key, struct pending_flow *value)
{
	return bpf_map_update_elem(&pending_flows, key, value, BPF_NOEXIST);
}

static __always_inline void pending_flows_delete(struct flow_key *key)
{
	bpf_map_delete_elem(&pending_flows, key);
}

static __always_inline struct flow_entry *flow_table_lookup(struct flow_key *key)
{
	return bpf_map_lookup_elem(&flow_table, key);
}

static __always_inline int flow_table_insert(struct flow_key *key, struct flow_entry *value)
{
	return bpf_map_update_elem(&flow_table, key, value, BPF_NOEXIST);
}

static __always_inline void flow_table_delete(struct flow_key *key)
{
	bpf_map_delete_elem(&flow_table, key);
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

static __always_inline struct scratch *scratch_lookup(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&scratch, &zero);
}

static __always_inline void stages_call(struct xdp_md *ctx, __u32 stage)
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

#endif /* dialect */

#endif
