/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Programs around the router's own for BPF_PROG_TEST_RUN: one that fills flow_table, drivers
 * that make each run of a repeated test another packet, and the reference programs that a
 * router cannot be faster than. Loaded with the maps of a data plane.
 */
#include <linux/bpf.h>

#include "abi.h"
#include "lib/maps.h"
#include "lib/parse.h"

#include "headers.h"

/* Client i: address client_base + i / CLIENT_PORTS, port CLIENT_PORT_MIN + i % CLIENT_PORTS. */
#define CLIENT_PORTS_SHIFT 15
#define CLIENT_PORTS (1U << CLIENT_PORTS_SHIFT)
#define CLIENT_PORT_MIN 16384

struct bench_config {
	__u64 random; /* state of the generator; never 0 */
	__u32 flows;
	__u32 next; /* fill_flows: the flow to insert */
	addr_t client_base;
	addr_t service_addr;
	addr_t backend_addr;
	addr_t nat_addr; /* fullnat: ours, behind it further ones */
	__be16 service_port;
	__be16 backend_port;
	__u8 client_mac[6];
	__u8 client_side_mac[6]; /* the router's, where clients send to */
	__u8 backend_mac[6];
	__u8 backend_side_mac[6];
	__u8 proto;
	__u8 forwarding; /* enum xr_forwarding */
	__u16 pad;
	flow_entry_t forward; /* templates */
	flow_entry_t reply;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bench_config);
} bench_config SEC(".maps");

/* [0]: the program that a driver goes on to. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} bench_target SEC(".maps");

static __always_inline struct bench_config *config_lookup(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&bench_config, &zero);
}

/* xorshift64 (Marsaglia) */
static __always_inline __u64 draw(struct bench_config *config)
{
	__u64 x = config->random;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	config->random = x;
	return x;
}

/* The address that is so many behind another one, or differs so in its last 32 bits. */
static __always_inline addr_t addr_behind(addr_t base, __u32 by)
{
#if XR_FAMILY == 6
	base.word[3] = xr_htonl(xr_ntohl(base.word[3]) + by);
	return base;
#else
	return xr_htonl(xr_ntohl(base) + by);
#endif
}

static __always_inline addr_t client_addr(const struct bench_config *config, __u32 flow)
{
	return addr_behind(config->client_base, flow >> CLIENT_PORTS_SHIFT);
}

static __always_inline __be16 client_port(__u32 flow)
{
	return xr_htons(CLIENT_PORT_MIN + (flow & (CLIENT_PORTS - 1)));
}

static __always_inline int go_on(struct xdp_md *ctx)
{
	bpf_tail_call(ctx, &bench_target, 0);
	return XDP_ABORTED;
}

static __always_inline void entry_complete(flow_entry_t *entry, const flow_key_t *key)
{
	entry->l3_delta = csum_delta_addrs(key, entry->new_saddr, entry->new_daddr);
	entry->l4_delta = csum_delta_l4(key, entry->l3_delta, entry->new_sport, entry->new_dport);
}

static __always_inline int is_direct(const struct bench_config *config)
{
	return config->forwarding == XR_FORWARD_DSR || config->forwarding == XR_FORWARD_IPIP;
}

static __always_inline int is_fullnat(const struct bench_config *config)
{
	return config->forwarding == XR_FORWARD_FULLNAT;
}

/* The key of the next flow's packets to the service, and in the template what they become. */
static __always_inline void next_flow(struct bench_config *config, flow_key_t *key)
{
	flow_entry_t *entry = &config->forward;
	__u32 flow = config->next++;

	key->saddr = client_addr(config, flow);
	key->sport = client_port(flow);
	key->daddr = config->service_addr;
	key->dport = config->service_port;
	key->proto = config->proto;
	entry->new_saddr = key->saddr;
	entry->new_sport = key->sport;
	entry->new_daddr = key->daddr;
	entry->new_dport = key->dport;
	if (is_fullnat(config)) /* client_port() again: so many ports has each of our addresses */
		entry->new_saddr = addr_behind(config->nat_addr, flow >> CLIENT_PORTS_SHIFT);
	if (!is_direct(config)) {
		entry->new_daddr = config->backend_addr;
		entry->new_dport = config->backend_port;
	}
}

/* The key of its replies. */
static __always_inline void key_of_reply(const struct bench_config *config, flow_key_t *key)
{
	const flow_entry_t *entry = &config->forward;

	key->saddr = entry->new_daddr;
	key->daddr = entry->new_saddr;
	key->sport = entry->new_dport;
	key->dport = entry->new_sport;
	key->proto = config->proto;
}

/* Inserts the entries of one flow. Anything but XDP_PASS: the table did not take them. */
SEC("xdp") int fill_flows(struct xdp_md *ctx)
{
	struct bench_config *config = config_lookup();
	flow_key_t key = {}, back = {};
	flow_entry_t *entry;

	if (!config)
		return XDP_ABORTED;
	next_flow(config, &key);
	entry_complete(&config->forward, &key);
	if (flow_table_insert(&key, &config->forward))
		return XDP_DROP;
	if (is_direct(config))
		return XDP_PASS;
	key_of_reply(config, &back);
	entry = &config->reply;
	entry->new_saddr = key.daddr;
	entry->new_daddr = key.saddr;
	entry->new_sport = key.dport;
	entry->new_dport = key.sport;
	entry_complete(entry, &back);
	return flow_table_insert(&back, entry) ? XDP_DROP : XDP_PASS;
}

/* Undoes fill_flows. */
SEC("xdp") int remove_flows(struct xdp_md *ctx)
{
	struct bench_config *config = config_lookup();
	flow_key_t key = {}, back = {};

	if (!config)
		return XDP_ABORTED;
	next_flow(config, &key);
	if (flow_table_delete(&key))
		return XDP_DROP;
	if (is_direct(config))
		return XDP_PASS;
	key_of_reply(config, &back);
	return flow_table_delete(&back) ? XDP_DROP : XDP_PASS;
}

/* Bytes of the frames that are sent; with an outer header they come back longer. */
#define FRAME (XR_FAMILY == 6 ? sizeof(struct headers) : sizeof(struct headers) + 6)

/* The frame that the last run left, made anew as far as it may have changed. */
static __always_inline struct headers *restored(struct xdp_md *ctx, const __u8 *dmac,
						const __u8 *smac)
{
	struct headers *packet;

	if ((void *)(long)ctx->data_end - (void *)(long)ctx->data > (long)FRAME)
		bpf_xdp_adjust_head(ctx, sizeof(ip_header_t));
	packet = headers_of(ctx);
	if (!packet)
		return 0;
	mac_copy(packet->eth.h_dest, dmac);
	mac_copy(packet->eth.h_source, smac);
	packet->eth.h_proto = xr_htons(XR_FAMILY == 6 ? ETH_P_IPV6 : ETH_P_IP);
	ip_of(packet)->ttl = 64;
	return packet;
}

/* A packet of a random established flow, client to service. */
SEC("xdp") int drive_forward(struct xdp_md *ctx)
{
	struct bench_config *config = config_lookup();
	struct headers *packet;
	__u32 flow;

	if (!config)
		return XDP_ABORTED;
	packet = restored(ctx, config->client_side_mac, config->client_mac);
	if (!packet)
		return XDP_ABORTED;
	flow = (draw(config) >> 32) * config->flows >> 32;
	ip_of(packet)->saddr = client_addr(config, flow);
	ip_of(packet)->daddr = config->service_addr;
	tcp_of(packet)->source = client_port(flow);
	tcp_of(packet)->dest = config->service_port;
	return go_on(ctx);
}

/* The same, backend to client. */
SEC("xdp") int drive_reply(struct xdp_md *ctx)
{
	struct bench_config *config = config_lookup();
	struct headers *packet;
	addr_t base;
	__u32 flow;

	if (!config)
		return XDP_ABORTED;
	packet = restored(ctx, config->backend_side_mac, config->backend_mac);
	if (!packet)
		return XDP_ABORTED;
	flow = (draw(config) >> 32) * config->flows >> 32;
	base = is_fullnat(config) ? config->nat_addr : config->client_base;
	ip_of(packet)->saddr = config->backend_addr;
	ip_of(packet)->daddr = addr_behind(base, flow >> CLIENT_PORTS_SHIFT);
	tcp_of(packet)->source = config->backend_port;
	tcp_of(packet)->dest = client_port(flow);
	return go_on(ctx);
}

/* A packet to the service from a source that was never seen: 2^48 of them. */
SEC("xdp") int drive_first(struct xdp_md *ctx)
{
	struct bench_config *config = config_lookup();
	struct headers *packet;
	__u64 random;

	if (!config)
		return XDP_ABORTED;
	packet = restored(ctx, config->client_side_mac, config->client_mac);
	if (!packet)
		return XDP_ABORTED;
	random = draw(config);
	ip_of(packet)->saddr = addr_behind(config->client_base, random >> 32);
	ip_of(packet)->daddr = config->service_addr;
	tcp_of(packet)->source = random >> 16;
	tcp_of(packet)->dest = config->service_port;
	return go_on(ctx);
}

static __always_inline void tuple_of(struct headers *packet, __u8 kind, flow_key_t *key)
{
	key->saddr = ip_of(packet)->saddr;
	key->daddr = ip_of(packet)->daddr;
	key->sport = tcp_of(packet)->source;
	key->dport = tcp_of(packet)->dest;
	key->proto = ip_of(packet)->protocol;
	key->kind = kind;
	key->pad = 0;
}

/* What no forwarder with a flow table can do without: one lookup, one atomic. */
SEC("xdp") int bare_lookup(struct xdp_md *ctx)
{
	struct headers *packet = headers_of(ctx);
	flow_entry_t *flow;
	flow_key_t key;

	if (!packet)
		return XDP_ABORTED;
	tuple_of(packet, XR_KIND_NONE, &key);
	flow = flow_table_lookup(&key);
	if (!flow)
		return XDP_ABORTED;
	__sync_fetch_and_add(&flow->packets, 1);
	return XDP_DROP;
}

/* Two lookups that find nothing: established, pending. */
SEC("xdp") int bare_misses(struct xdp_md *ctx)
{
	struct headers *packet = headers_of(ctx);
	flow_key_t key;

	if (!packet)
		return XDP_ABORTED;
	tuple_of(packet, XR_KIND_NONE, &key);
	if (flow_table_lookup(&key))
		return XDP_ABORTED;
	key.kind = XR_KIND_FORWARD;
	return pending_flows_lookup(&key) ? XDP_ABORTED : XDP_DROP;
}

/* What a tunnel costs a driver: the room in front, which the next run takes off again. */
SEC("xdp") int grow(struct xdp_md *ctx)
{
	return bpf_xdp_adjust_head(ctx, -(int)sizeof(ip_header_t)) ? XDP_ABORTED : XDP_DROP;
}

SEC("xdp") int empty(struct xdp_md *ctx)
{
	return XDP_DROP;
}
