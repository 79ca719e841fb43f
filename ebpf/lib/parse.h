/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Ethernet, up to two VLAN tags, IPv4 with options, TCP. Each step checks its own
 * bounds. Multi-byte header fields stay in network byte order; `struct packet` holds
 * host order except for its flow key.
 *
 * Sources: RFC 791, RFC 9293, IEEE 802.1Q; uapi linux/if_ether.h, ip.h, tcp.h.
 */
#ifndef XR_PARSE_H
#define XR_PARSE_H

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/tcp.h>

#define xr_htons(x) ((__be16)__builtin_bswap16((__u16)(x)))
#define xr_ntohs(x) ((__u16)__builtin_bswap16((__u16)(x)))
#define xr_htonl(x) ((__be32)__builtin_bswap32((__u32)(x)))
#define xr_ntohl(x) ((__u32)__builtin_bswap32((__u32)(x)))

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "byte order helpers assume a little-endian target"
#endif

#define IP_DONT_FRAGMENT 0x4000
#define IP_MORE_FRAGMENTS 0x2000
#define IP_FRAGMENT_OFFSET 0x1fff

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

/* RFC 792; uapi linux/icmp.h drags in the C library. */
#define ICMP_DEST_UNREACH 3
#define ICMP_FRAG_NEEDED 4
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETER_PROBLEM 12

struct icmp_header {
	__u8 type;
	__u8 code;
	__be16 checksum;
	__be32 rest;
};

struct vlan_tag {
	__be16 tci;
	__be16 inner_proto;
};

enum parse_result {
	PARSE_TCP = 0,
	PARSE_ICMP,
	PARSE_FRAGMENT_FIRST, /* ports are valid */
	PARSE_FRAGMENT_LATER,
	PARSE_NOT_IPV4,
	PARSE_NOT_TCP,
	PARSE_MALFORMED,
};

struct packet {
	struct ethhdr *eth;
	struct iphdr *ip;
	struct tcphdr *tcp;
	struct flow_key key; /* kind XR_KIND_NONE */
	__u32 seq;
	__u32 ack;
	__u16 window;
	__u16 ip_len;  /* IP total length: padding of the frame is not payload */
	__u16 payload; /* TCP payload bytes */
	__u32 frame_len;
	__u8 flags; /* low byte of the TCP flags */
	__u8 l3_off;
};

#define L3_OFF_MAX (sizeof(struct ethhdr) + XR_MAX_VLAN_TAGS * sizeof(struct vlan_tag))

static __always_inline int parse_ethernet(void *data, void *data_end, struct packet *p)
{
	struct ethhdr *eth = data;
	__be16 proto;
	void *at = eth + 1;
	__u64 l3_off;
	int i;

	if (at > data_end)
		return PARSE_MALFORMED;
	p->eth = eth;
	proto = eth->h_proto;
#pragma unroll
	for (i = 0; i < XR_MAX_VLAN_TAGS; i++) {
		struct vlan_tag *tag = at;

		if (proto != xr_htons(ETH_P_8021Q) && proto != xr_htons(ETH_P_8021AD))
			break;
		at = tag + 1;
		if (at > data_end)
			return PARSE_MALFORMED;
		proto = tag->inner_proto;
	}
	if (proto != xr_htons(ETH_P_IP))
		return PARSE_NOT_IPV4;
	/* The same place by a distance that the verifier knows only roughly: so the rest of the
	 * program looks the same after 0, 1 or 2 tags, and it is walked once, not three times. */
	l3_off = at - data;
	asm volatile("" : "+r"(l3_off));
	if (l3_off > L3_OFF_MAX)
		return PARSE_MALFORMED;
	p->l3_off = l3_off;
	p->ip = data + l3_off;
	return PARSE_TCP;
}

static __always_inline int parse_packet(struct xdp_md *ctx, struct packet *p)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	__u64 frame_len = data_end - data;
	__u32 header_len, tcp_len;
	struct tcphdr *tcp;
	struct iphdr *ip;
	int result;

	/* Subtracted in 64 bits: clang would narrow it, and the verifier refuses pointer
	 * arithmetic in 32 ("32-bit pointer arithmetic prohibited"). */
	asm volatile("" : "+r"(frame_len));
	p->frame_len = frame_len;
	result = parse_ethernet(data, data_end, p);
	if (result != PARSE_TCP)
		return result;
	ip = p->ip;
	if ((void *)(ip + 1) > data_end)
		return PARSE_MALFORMED;
	header_len = ip->ihl * 4;
	p->ip_len = xr_ntohs(ip->tot_len);
	if (ip->version != 4 || header_len < sizeof(*ip) || p->ip_len < header_len ||
	    p->l3_off + p->ip_len > p->frame_len)
		return PARSE_MALFORMED;
	if (ip->frag_off & xr_htons(IP_FRAGMENT_OFFSET))
		return PARSE_FRAGMENT_LATER;
	if (ip->protocol == IPPROTO_ICMP)
		return PARSE_ICMP;
	if (ip->protocol != IPPROTO_TCP)
		return PARSE_NOT_TCP;

	tcp = (void *)ip + header_len;
	if ((void *)(tcp + 1) > data_end || p->ip_len < header_len + sizeof(*tcp))
		return PARSE_MALFORMED;
	tcp_len = tcp->doff * 4;
	if (tcp_len < sizeof(*tcp))
		return PARSE_MALFORMED;
	p->tcp = tcp;
	p->key.saddr = ip->saddr;
	p->key.daddr = ip->daddr;
	p->key.sport = tcp->source;
	p->key.dport = tcp->dest;
	p->key.proto = IPPROTO_TCP;
	p->key.kind = XR_KIND_NONE;
	p->key.pad = 0;
	if (ip->frag_off & xr_htons(IP_MORE_FRAGMENTS))
		return PARSE_FRAGMENT_FIRST; /* its options may lie in a later one */
	if (p->ip_len < header_len + tcp_len)
		return PARSE_MALFORMED;
	p->seq = xr_ntohl(tcp->seq);
	p->ack = xr_ntohl(tcp->ack_seq);
	p->window = xr_ntohs(tcp->window);
	p->payload = p->ip_len - header_len - tcp_len;
	p->flags = ((__u8 *)tcp)[13];
	return PARSE_TCP;
}

/* Sequence space that a segment takes: payload, SYN and FIN count (RFC 9293, 3.4). */
static __always_inline __u32 segment_length(const struct packet *p)
{
	return p->payload + !!(p->flags & TCP_SYN) + !!(p->flags & TCP_FIN);
}

static __always_inline int mac_equal(const __u8 *a, const __u8 *b)
{
	return *(const __u16 *)a == *(const __u16 *)b &&
	       *(const __u16 *)(a + 2) == *(const __u16 *)(b + 2) &&
	       *(const __u16 *)(a + 4) == *(const __u16 *)(b + 4);
}

static __always_inline void mac_copy(__u8 *to, const __u8 *from)
{
	*(__u16 *)to = *(const __u16 *)from;
	*(__u16 *)(to + 2) = *(const __u16 *)(from + 2);
	*(__u16 *)(to + 4) = *(const __u16 *)(from + 4);
}

/*
 * Options looked at. 40 bytes hold at most 7 that mean something beside the padding that
 * stacks put before them; more cost load time (the verifier walks each round), and a scale
 * that is not found costs only the precision of FIN tracking.
 */
#define TCP_OPTIONS_MAX 12
#define TCPOPT_END 0
#define TCPOPT_NOP 1
#define TCPOPT_WINDOW_SCALE 3
#define WINDOW_SCALE_MAX 14 /* RFC 7323, 2.3 */

/* Window scale of a SYN or SYN-ACK, XR_NO_WSCALE when the option is not there. */
static __always_inline __u8 parse_window_scale(struct xdp_md *ctx, const struct packet *p)
{
	void *data_end = (void *)(long)ctx->data_end;
	__u8 *options = (__u8 *)(p->tcp + 1);
	__u32 length = p->tcp->doff * 4 - sizeof(struct tcphdr);
	__u32 at = 0, next;
	int i;

	for (i = 0; i < TCP_OPTIONS_MAX && at < length; i++) {
		__u8 *option = options + at;

		/* A scale has 3 bytes: fewer left in the header hold none, and the payload
		 * behind is not looked at. */
		if (at + 3 > length || (void *)(option + 3) > data_end || option[0] == TCPOPT_END)
			break;
		if (option[0] == TCPOPT_WINDOW_SCALE && option[1] == 3)
			return option[2] > WINDOW_SCALE_MAX ? WINDOW_SCALE_MAX : option[2];
		if (option[0] != TCPOPT_NOP && option[1] < 2)
			break;
		next = at + (option[0] == TCPOPT_NOP ? 1 : option[1]);
		if (next >= length)
			break;
		/* No change of value (next < 40): it makes all ways through the loop look
		 * alike. Without it the verifier walks each of them, 900,000 instructions. */
		asm volatile("%0 &= 63" : "+r"(next));
		at = next;
	}
	return XR_NO_WSCALE;
}

#endif
