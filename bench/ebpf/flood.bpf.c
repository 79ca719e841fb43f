/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A flood of forged first packets (SYNs, or datagrams) from inside the kernel, backends that
 * answer them without a stack, and the end where those answers go to nobody. All else passes.
 */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#include "abi.h"
#include "lib/parse.h"
#include "lib/csum.h"

#include "headers.h"

/* Forged sources: 64 prefixes of 256 addresses, as budgets know prefixes (/24, of IPv6 /56). */
#define FORGED 0xc6128000U /* 198.18.128.0/18, host byte order */
#define FORGED_BITS 14
#define FORGED6 0x20010db8U /* 2001:db8:f000::/40 */
#define FORGED6_NEXT 0xf0000000U
#define FORGED6_BITS 24
#define PORT_MIN 1024
#define ISN_SALT 0x9e3779b1U
#define HEAD_MAX 80

char _license[] SEC("license") = "Dual BSD/GPL";

/* The same for both families. */
struct flood_config {
	__u64 random;
	__u64 sent;
	__u8 head[HEAD_MAX]; /* template: source, ports' first, ISN and sums 0 */
	__u8 proto;
	__u8 pad[7];
};
XR_ASSERT_SIZE(flood_config, 104);
_Static_assert(sizeof(struct headers) <= HEAD_MAX, "template");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flood_config);
} flood_config SEC(".maps");

enum flood_counter {
	FLOOD_FIRST,    /* first packets that arrived at a backend */
	FLOOD_ANSWERED, /* answers that came back to where the forged packets were sent */
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

#if XR_FAMILY == 6

static __always_inline addr_t forged_addr(__u64 random)
{
	addr_t addr = {.word = {xr_htonl(FORGED6), xr_htonl(FORGED6_NEXT | (random & 0x3f00)), 0,
				xr_htonl(0x100 | (random & 0xff))}};

	return addr;
}

static __always_inline int is_forged(addr_t addr)
{
	return addr.word[0] == xr_htonl(FORGED6) &&
	       xr_ntohl(addr.word[1]) >> FORGED6_BITS == FORGED6_NEXT >> FORGED6_BITS;
}

static __always_inline int is_ip(struct headers *packet)
{
	return packet->eth.h_proto == xr_htons(ETH_P_IPV6);
}

#else

static __always_inline addr_t forged_addr(__u64 random)
{
	return xr_htonl(FORGED | (random & ((1U << FORGED_BITS) - 1)));
}

static __always_inline int is_forged(addr_t addr)
{
	return xr_ntohl(addr) >> FORGED_BITS == FORGED >> FORGED_BITS;
}

static __always_inline int is_ip(struct headers *packet)
{
	return packet->eth.h_proto == xr_htons(ETH_P_IP) && packet->ip[0] == 0x45;
}

#endif

static __always_inline int is_first(struct headers *packet)
{
	__u8 proto = ip_of(packet)->protocol;

	return is_ip(packet) && (proto == IPPROTO_TCP || proto == IPPROTO_UDP);
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

/* Checksums of a segment of 20 bytes without payload, or of a datagram of 20 bytes. */
static __always_inline void set_sums(struct headers *packet)
{
	__u8 proto = ip_of(packet)->protocol;
	__u32 sum;

#if XR_FAMILY == 4
	ip_of(packet)->check = 0;
	ip_of(packet)->check = ~csum_fold(sum_of(packet->ip, sizeof(packet->ip)));
#endif
	if (proto == IPPROTO_UDP)
		udp_of(packet)->check = 0;
	else
		tcp_of(packet)->check = 0;
	sum = sum_of(packet->tcp, sizeof(packet->tcp));
	sum += sum_of(packet->ip + sizeof(packet->ip) - 2 * sizeof(addr_t), 2 * sizeof(addr_t));
	sum += xr_htons(proto) + xr_htons(sizeof(packet->tcp));
	sum = (__u16)~csum_fold(sum);
	if (proto == IPPROTO_UDP)
		udp_of(packet)->check = sum ? sum : 0xffff;
	else
		tcp_of(packet)->check = sum;
}

/* Each frame is the first packet of somebody else. One CPU at a time. */
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
	ip_of(packet)->saddr = forged_addr(x);
	tcp_of(packet)->source = xr_htons((x >> 16) | PORT_MIN);
	if (config->proto == IPPROTO_TCP)
		tcp_of(packet)->seq = (__u32)(x >> 32);
	set_sums(packet);
	return bpf_redirect(ctx->ingress_ifindex, 0);
}

/* A backend: what a stack would answer, to forged sources alone. */
SEC("xdp") int answer_forged(struct xdp_md *ctx)
{
	struct headers *packet = headers_of(ctx);
	ip_header_t *ip;
	struct tcphdr *tcp;
	__u8 mac[ETH_ALEN];
	addr_t addr;
	__be16 port;

	if (!packet || !is_first(packet) || !is_forged(ip_of(packet)->saddr))
		return XDP_PASS;
	ip = ip_of(packet);
	tcp = tcp_of(packet);
	if (ip->protocol == IPPROTO_TCP && packet->tcp[13] != TCP_SYN)
		return XDP_DROP;
	count_at(FLOOD_FIRST);
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
	if (ip->protocol == IPPROTO_TCP) {
		tcp->ack_seq = xr_htonl(xr_ntohl(tcp->seq) + 1);
		tcp->seq = tcp->seq * ISN_SALT;
		packet->tcp[13] = TCP_SYN | TCP_ACK;
	}
	set_sums(packet);
	return bpf_redirect(ctx->ingress_ifindex, 0);
}

/* Where forged packets are sent from: nobody there wants the answers. */
SEC("xdp") int drop_answers(struct xdp_md *ctx)
{
	struct headers *packet = headers_of(ctx);

	if (!packet || !is_first(packet) || !is_forged(ip_of(packet)->daddr))
		return XDP_PASS;
	count_at(FLOOD_ANSWERED);
	return XDP_DROP;
}
