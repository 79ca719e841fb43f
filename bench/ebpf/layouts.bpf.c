/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Would one table for both address families do? Tables with keys and values of several sizes:
 * one look-up and one atomic in each, which no forwarder with a flow table can do without.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"

char _license[] SEC("license") = "Dual BSD/GPL";

struct layouts_config {
	__u64 random; /* never 0 */
	__u32 keys;   /* drawn from so many */
	__u32 next;   /* fill: the key to insert */
};
XR_ASSERT_SIZE(layouts_config, 16);

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct layouts_config);
} layouts_config SEC(".maps");

/* Key number i: words that differ as addresses and ports of flows do. */
static __always_inline void key_make(__u32 *words, __u32 count, __u32 number)
{
	__u32 i;

#pragma unroll
	for (i = 0; i < count; i++)
		words[i] = 0;
	words[0] = 0xc6120002U + (number >> 15);
	words[count - 2] = 16384 + (number & 0x7fff);
	words[count - 1] = 6;
}

static __always_inline struct layouts_config *config_lookup(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&layouts_config, &zero);
}

/* xorshift64 (Marsaglia) */
static __always_inline __u32 draw(struct layouts_config *config)
{
	__u64 x = config->random;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	config->random = x;
	return (x >> 32) * config->keys >> 32;
}

#define LAYOUT(key_bytes, value_bytes)                                                             \
	struct key_##value_bytes {                                                                 \
		__u32 words[key_bytes / 4];                                                        \
	};                                                                                         \
	struct value_##value_bytes {                                                               \
		__u64 words[value_bytes / 8];                                                      \
	};                                                                                         \
	struct {                                                                                   \
		__uint(type, BPF_MAP_TYPE_HASH);                                                   \
		__uint(max_entries, 1);                                                            \
		__type(key, struct key_##value_bytes);                                             \
		__type(value, struct value_##value_bytes);                                         \
	} table_##value_bytes SEC(".maps");                                                        \
                                                                                                   \
	SEC("xdp") int fill_##value_bytes(struct xdp_md *ctx)                                      \
	{                                                                                          \
		struct layouts_config *config = config_lookup();                                   \
		struct value_##value_bytes value;                                                  \
		struct key_##value_bytes key;                                                      \
                                                                                                   \
		if (!config)                                                                       \
			return XDP_ABORTED;                                                        \
		__builtin_memset(&value, 0, sizeof(value));                                        \
		key_make(key.words, key_bytes / 4, config->next++);                                \
		return bpf_map_update_elem(&table_##value_bytes, &key, &value, BPF_NOEXIST)        \
			       ? XDP_DROP                                                          \
			       : XDP_PASS;                                                         \
	}                                                                                          \
                                                                                                   \
	SEC("xdp") int look_##value_bytes(struct xdp_md *ctx)                                      \
	{                                                                                          \
		struct layouts_config *config = config_lookup();                                   \
		struct value_##value_bytes *value;                                                 \
		struct key_##value_bytes key;                                                      \
                                                                                                   \
		if (!config)                                                                       \
			return XDP_ABORTED;                                                        \
		key_make(key.words, key_bytes / 4, draw(config));                                  \
		value = bpf_map_lookup_elem(&table_##value_bytes, &key);                           \
		if (!value)                                                                        \
			return XDP_ABORTED;                                                        \
		__sync_fetch_and_add(&value->words[1], 1);                                         \
		return XDP_DROP;                                                                   \
	}                                                                                          \
                                                                                                   \
	/* The same without a table. */                                                            \
	SEC("xdp") int draw_##value_bytes(struct xdp_md *ctx)                                      \
	{                                                                                          \
		struct layouts_config *config = config_lookup();                                   \
		struct key_##value_bytes key;                                                      \
                                                                                                   \
		if (!config)                                                                       \
			return XDP_ABORTED;                                                        \
		key_make(key.words, key_bytes / 4, draw(config));                                  \
		asm volatile("" ::"r"(&key) : "memory");                                           \
		return XDP_DROP;                                                                   \
	}

LAYOUT(16, 128) /* flow_key, flow_entry */
LAYOUT(40, 152) /* flow_key6, flow_entry6: what one table for both would have */
LAYOUT(40, 176) /* the same with 24 bytes to spare */

_Static_assert(sizeof(struct flow_key) == 16 && sizeof(struct flow_entry) == 128, "IPv4");
_Static_assert(sizeof(struct flow_key6) == 40 && sizeof(struct flow_entry6) == 152, "IPv6");
