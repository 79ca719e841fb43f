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
#include "lib/csum.h"

#include "headers.h"

/* Client i: address client_base + i / CLIENT_PORTS, port CLIENT_PORT_MIN + i % CLIENT_PORTS. */
#define CLIENT_PORTS_SHIFT 15
#define CLIENT_PORTS (1U << CLIENT_PORTS_SHIFT)
#define CLIENT_PORT_MIN 16384

struct bench_config {
	__u64 random; /* state of the generator; never 0 */
	__u32 flows;
	__u32 next;        /* fill_flows: the flow to insert */
	__u32 client_base; /* host byte order */
	__be32 service_addr;
	__be32 backend_addr;
	__be16 service_port;
	__be16 backend_port;
	__u8 client_side_mac[6]; /* the router's, where clients send to */
	__u8 backend_side_mac[6];
	__u32 pad;
	struct flow_entry forward; /* templates */
	struct flow_entry reply;
};
XR_ASSERT_SIZE(bench_config, 304);

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

static __always_inline __be32 client_addr(const struct bench_config *config, __u32 flow)
{
	return xr_htonl(config->client_base + (flow >> CLIENT_PORTS_SHIFT));
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

static __always_inline void entry_complete(struct flow_entry *entry, const struct flow_key *key)
{
	entry->l3_delta = csum_delta_l3(key, entry->new_saddr, entry->new_daddr);
	entry->l4_delta = csum_delta_l4(key, entry->l3_delta, entry->new_sport, entry->new_dport);
}

/* Inserts both entries of one flow. Anything but XDP_PASS: the table did not take them. */
SEC("xdp") int fill_flows(struct xdp_md *ctx)
{
	struct bench_config *config = config_lookup();
	struct flow_key key = {.proto = IPPROTO_TCP};
	struct flow_entry *entry;
	__u32 flow;

	if (!config)
		return XDP_ABORTED;
	flow = config->next++;
	key.saddr = client_addr(config, flow);
	key.sport = client_port(flow);
	key.daddr = config->service_addr;
	key.dport = config->service_port;
	entry = &config->forward;
	entry->new_saddr = key.saddr;
	entry->new_sport = key.sport;
	entry->new_daddr = config->backend_addr;
	entry->new_dport = config->backend_port;
	entry_complete(entry, &key);
	if (flow_table_insert(&key, entry))
		return XDP_DROP;
	key.daddr = key.saddr;
	key.dport = key.sport;
	key.saddr = config->backend_addr;
	key.sport = config->backend_port;
	entry = &config->reply;
	entry->new_saddr = config->service_addr;
	entry->new_sport = config->service_port;
	entry->new_daddr = key.daddr;
	entry->new_dport = key.dport;
	entry_complete(entry, &key);
	return flow_table_insert(&key, entry) ? XDP_DROP : XDP_PASS;
}

/* A packet of a random established flow, client to service. */
SEC("xdp") int drive_forward(struct xdp_md *ctx)
{
	struct bench_config *config = config_lookup();
	struct headers *packet = headers_of(ctx);
	__u32 flow;

	if (!config || !packet)
		return XDP_ABORTED;
	flow = (draw(config) >> 32) * config->flows >> 32;
	mac_copy(packet->eth.h_dest, config->client_side_mac);
	ip_of(packet)->ttl = 64;
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
	struct headers *packet = headers_of(ctx);
	__u32 flow;

	if (!config || !packet)
		return XDP_ABORTED;
	flow = (draw(config) >> 32) * config->flows >> 32;
	mac_copy(packet->eth.h_dest, config->backend_side_mac);
	ip_of(packet)->ttl = 64;
	ip_of(packet)->saddr = config->backend_addr;
	ip_of(packet)->daddr = client_addr(config, flow);
	tcp_of(packet)->source = config->backend_port;
	tcp_of(packet)->dest = client_port(flow);
	return go_on(ctx);
}

/* A packet to the service from a source that was never seen: 2^48 of them. */
SEC("xdp") int drive_syn(struct xdp_md *ctx)
{
	struct bench_config *config = config_lookup();
	struct headers *packet = headers_of(ctx);
	__u64 random;

	if (!config || !packet)
		return XDP_ABORTED;
	random = draw(config);
	mac_copy(packet->eth.h_dest, config->client_side_mac);
	ip_of(packet)->ttl = 64;
	ip_of(packet)->saddr = random >> 32;
	ip_of(packet)->daddr = config->service_addr;
	tcp_of(packet)->source = random >> 16;
	tcp_of(packet)->dest = config->service_port;
	return go_on(ctx);
}

static __always_inline void key_of(struct headers *packet, __u8 kind, struct flow_key *key)
{
	key->saddr = ip_of(packet)->saddr;
	key->daddr = ip_of(packet)->daddr;
	key->sport = tcp_of(packet)->source;
	key->dport = tcp_of(packet)->dest;
	key->proto = IPPROTO_TCP;
	key->kind = kind;
	key->pad = 0;
}

/* What no forwarder with a flow table can do without: one lookup, one atomic. */
SEC("xdp") int bare_lookup(struct xdp_md *ctx)
{
	struct headers *packet = headers_of(ctx);
	struct flow_entry *flow;
	struct flow_key key;

	if (!packet)
		return XDP_ABORTED;
	key_of(packet, XR_KIND_NONE, &key);
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
	struct flow_key key;

	if (!packet)
		return XDP_ABORTED;
	key_of(packet, XR_KIND_NONE, &key);
	if (flow_table_lookup(&key))
		return XDP_ABORTED;
	key.kind = XR_KIND_FORWARD;
	return pending_flows_lookup(&key) ? XDP_ABORTED : XDP_DROP;
}

SEC("xdp") int empty(struct xdp_md *ctx)
{
	return XDP_DROP;
}
