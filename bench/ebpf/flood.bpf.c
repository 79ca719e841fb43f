/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A flood of forged SYNs from inside the kernel, backends that answer them without a stack, and
 * the end where those answers go to nobody. All else passes.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/parse.h"
#include "lib/csum.h"

#include "headers.h"

#define FORGED 0xc6128000U /* 198.18.128.0/18, host byte order */
#define FORGED_BITS 14
#define PORT_MIN 1024
#define ISN_SALT 0x9e3779b1U

char _license[] SEC("license") = "Dual BSD/GPL";

struct flood_config {
	__u64 random;
	__u64 sent;
	__u8 head[sizeof(struct headers) + 2]; /* template: source, ports' first, ISN and sums 0 */
};
XR_ASSERT_SIZE(flood_config, 72);

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flood_config);
} flood_config SEC(".maps");

enum flood_counter {
	FLOOD_SYNS,     /* arrived at a backend */
	FLOOD_ANSWERED, /* SYN-ACKs that came back to where the forged SYNs were sent */
	FLOOD_COUNTERS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, FLOOD_COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} flood_counts SEC(".maps");

static __always_inline void count_at(__u32 index)
{
	__u64 *count = bpf_map_lookup_elem(&flood_counts, &index);

	if (count)
		(*count)++;
}

static __always_inline int is_forged(__be32 addr)
{
	return xr_ntohl(addr) >> FORGED_BITS == FORGED >> FORGED_BITS;
}

static __always_inline int is_tcp(struct headers *packet)
{
	return packet->eth.h_proto == xr_htons(ETH_P_IP) && packet->ip[0] == 0x45 &&
	       ip_of(packet)->protocol == IPPROTO_TCP;
}

static __always_inline __u32 sum_of(const __u8 *bytes, int length)
{
	__u32 sum = 0;
	int i;

#pragma unroll
	for (i = 0; i < length; i += 2)
		sum += *(const __u16 *)(bytes + i);
	return sum;
}

/* Both checksums of a segment of 20 bytes without payload. */
static __always_inline void set_sums(struct headers *packet)
{
	__u32 sum;

	ip_of(packet)->check = 0;
	ip_of(packet)->check = ~csum_fold(sum_of(packet->ip, sizeof(packet->ip)));
	tcp_of(packet)->check = 0;
	sum = sum_of(packet->tcp, sizeof(packet->tcp)) + sum_of(packet->ip + 12, 8);
	sum += xr_htons(IPPROTO_TCP) + xr_htons(sizeof(packet->tcp));
	tcp_of(packet)->check = ~csum_fold(sum);
}

/* Each frame is the SYN of somebody else. One CPU at a time. */
SEC("xdp") int forge(struct xdp_md *ctx)
{
	struct headers *packet = headers_of(ctx);
	struct flood_config *config;
	__u32 zero = 0;
	__u64 x;

	config = bpf_map_lookup_elem(&flood_config, &zero);
	if (!config || !packet)
		return XDP_ABORTED;
	x = config->random;
	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	config->random = x;
	config->sent++;
	__builtin_memcpy(packet, config->head, sizeof(*packet));
	ip_of(packet)->saddr = xr_htonl(FORGED | (x & ((1U << FORGED_BITS) - 1)));
	tcp_of(packet)->source = xr_htons((x >> 16) | PORT_MIN);
	tcp_of(packet)->seq = (__u32)(x >> 32);
	set_sums(packet);
	return bpf_redirect(ctx->ingress_ifindex, 0);
}

/* A backend: the SYN-ACK that a stack would send, to forged sources alone. */
SEC("xdp") int answer_forged(struct xdp_md *ctx)
{
	struct headers *packet = headers_of(ctx);
	struct iphdr *ip;
	struct tcphdr *tcp;
	__u8 mac[ETH_ALEN];
	__be32 addr;
	__be16 port;

	if (!packet || !is_tcp(packet) || !is_forged(ip_of(packet)->saddr))
		return XDP_PASS;
	if (packet->tcp[13] != TCP_SYN)
		return XDP_DROP;
	count_at(FLOOD_SYNS);
	ip = ip_of(packet);
	tcp = tcp_of(packet);
	mac_copy(mac, packet->eth.h_dest);
	mac_copy(packet->eth.h_dest, packet->eth.h_source);
	mac_copy(packet->eth.h_source, mac);
	addr = ip->saddr;
	ip->saddr = ip->daddr;
	ip->daddr = addr;
	ip->ttl = 64;
	port = tcp->source;
	tcp->source = tcp->dest;
	tcp->dest = port;
	tcp->ack_seq = xr_htonl(xr_ntohl(tcp->seq) + 1);
	tcp->seq = tcp->seq * ISN_SALT;
	packet->tcp[13] = TCP_SYN | TCP_ACK;
	set_sums(packet);
	return bpf_redirect(ctx->ingress_ifindex, 0);
}

/* Where forged SYNs are sent from: nobody there wants the answers. */
SEC("xdp") int drop_answers(struct xdp_md *ctx)
{
	struct headers *packet = headers_of(ctx);

	if (!packet || !is_tcp(packet) || !is_forged(ip_of(packet)->daddr))
		return XDP_PASS;
	count_at(FLOOD_ANSWERED);
	return XDP_DROP;
}
