/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The ends of a wire: a generator for live frames, a router that is nothing but a redirect,
 * and the receivers that count.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/parse.h"

#include "headers.h"

#define HEAD_MAX 80
#define NEXT_HEADER 6 /* offset in an IPv6 header */
#define CLIENT_PORTS_SHIFT 15
#define CLIENT_PORT_MIN 16384

char _license[] SEC("license") = "Dual BSD/GPL";

/* The same for both families, which share the map. */
struct wire_config {
	__u64 random;
	__u32 flows; /* random flows of so many; 0: a new one each frame, with an ISN */
	__u32 next;
	__u32 client_base; /* its last 32 bits, host byte order; numbered as in flows.bpf.c */
	__u32 ip_sum;      /* of the template without source address, not folded */
	__u32 l4_sum;      /* the same, without source port and sequence number */
	__u32 redirect_to; /* bare_redirect: egress */
	__u8 dmac[6];      /* bare_redirect: next hop */
	__u8 smac[6];
	__u8 head[HEAD_MAX]; /* template */
	__u8 proto;
	__u8 arrives; /* what the IP header at the receiver says that it carries */
	__u16 pad;
};
XR_ASSERT_SIZE(wire_config, 128);
_Static_assert(sizeof(struct headers) <= HEAD_MAX, "template");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct wire_config);
} wire_config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} wire_count SEC(".maps");

/* Source address and port, network byte order -> when its SYN arrived. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, __u64);
	__type(value, __u64);
} wire_arrivals SEC(".maps");

static __always_inline struct wire_config *config_lookup(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&wire_config, &zero);
}

static __always_inline __u16 finish_sum(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

static __always_inline void count_one(void)
{
	__u32 zero = 0;
	__u64 *count = bpf_map_lookup_elem(&wire_count, &zero);

	if (count)
		(*count)++;
}

/* Live frames come back as the router left them: the headers are written anew each time. */
SEC("xdp") int generate(struct xdp_md *ctx)
{
	struct wire_config *config = config_lookup();
	struct headers *packet = headers_of(ctx);
	__u32 flow, seq = 0, sum;
	__be32 addr;
	__be16 port;

	if (!config || !packet)
		return XDP_ABORTED;
	if (config->flows) {
		__u64 x = config->random;

		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		config->random = x;
		flow = (x >> 32) * config->flows >> 32;
	} else {
		flow = config->next++;
		seq = xr_htonl(flow * 0x9e3779b1U);
	}
	addr = xr_htonl(config->client_base + (flow >> CLIENT_PORTS_SHIFT));
	port = xr_htons(CLIENT_PORT_MIN + (flow & ((1U << CLIENT_PORTS_SHIFT) - 1)));
	__builtin_memcpy(packet, config->head, sizeof(*packet));
	sum = (addr & 0xffff) + (addr >> 16);
#if XR_FAMILY == 6
	ip_of(packet)->saddr.word[3] = addr;
#else
	ip_of(packet)->saddr = addr;
	ip_of(packet)->check = finish_sum(config->ip_sum + sum);
#endif
	tcp_of(packet)->source = port;
	if (config->proto == IPPROTO_UDP) {
		__u16 check = finish_sum(config->l4_sum + sum + port);

		udp_of(packet)->check = check ? check : 0xffff;
		return bpf_redirect(ctx->ingress_ifindex, 0);
	}
	if (!config->flows) {
		tcp_of(packet)->seq = seq;
		sum += (seq & 0xffff) + (seq >> 16);
	}
	tcp_of(packet)->check = finish_sum(config->l4_sum + sum + port);
	return bpf_redirect(ctx->ingress_ifindex, 0);
}

/* What no XDP router can be faster than. */
SEC("xdp") int bare_redirect(struct xdp_md *ctx)
{
	struct wire_config *config = config_lookup();
	struct headers *packet = headers_of(ctx);

	if (!config || !packet)
		return XDP_ABORTED;
	mac_copy(packet->eth.h_dest, config->dmac);
	mac_copy(packet->eth.h_source, config->smac);
	return bpf_redirect(config->redirect_to, 0);
}

/* What an untagged frame of either family carries; 0: it is no IP. */
static __always_inline __u8 carried(struct headers *packet)
{
	if (packet->eth.h_proto == xr_htons(ETH_P_IP))
		return packet->ip[__builtin_offsetof(struct iphdr, protocol)];
	return packet->eth.h_proto == xr_htons(ETH_P_IPV6) ? packet->ip[NEXT_HEADER] : 0;
}

/* Receiver: every packet of the sort that is awaited is counted, and goes no further. */
SEC("xdp") int count_and_drop(struct xdp_md *ctx)
{
	struct wire_config *config = config_lookup();
	struct headers *packet = headers_of(ctx);

	if (!config || !packet || carried(packet) != config->arrives)
		return XDP_PASS;
	count_one();
	return XDP_DROP;
}

#if XR_FAMILY == 4

static __always_inline int is_tcp(struct headers *packet)
{
	return packet->eth.h_proto == xr_htons(ETH_P_IP) && ip_of(packet)->protocol == IPPROTO_TCP;
}

static __always_inline int is_client_syn(const struct wire_config *config, struct headers *packet)
{
	return is_tcp(packet) && packet->tcp[13] == TCP_SYN &&
	       xr_ntohl(ip_of(packet)->saddr) >> 16 == config->client_base >> 16;
}

/* Receiver: clients' SYNs are counted and go no further; probes pass to the kernel. */
SEC("xdp") int count_syns(struct xdp_md *ctx)
{
	struct wire_config *config = config_lookup();
	struct headers *packet = headers_of(ctx);

	if (!config || !packet || !is_client_syn(config, packet))
		return XDP_PASS;
	count_one();
	return XDP_DROP;
}

/* Receiver: notes when each client's SYN arrived. */
SEC("xdp") int time_syns(struct xdp_md *ctx)
{
	struct wire_config *config = config_lookup();
	struct headers *packet = headers_of(ctx);
	__u64 key, now_ns = bpf_ktime_get_ns();

	if (!config || !packet || !is_client_syn(config, packet))
		return XDP_PASS;
	key = (__u64)ip_of(packet)->saddr << 16 | tcp_of(packet)->source;
	bpf_map_update_elem(&wire_arrivals, &key, &now_ns, BPF_NOEXIST);
	count_one();
	return XDP_DROP;
}

#endif /* family */
