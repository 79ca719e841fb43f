/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Ethernet, up to two VLAN tags, IP with options or extension headers, TCP, UDP. Each step
 * checks its own bounds.
 *
 * Sources: RFC 768, RFC 9293, IEEE 802.1Q; uapi linux/if_ether.h, tcp.h, udp.h.
 */
#ifndef XR_PARSE_H
#define XR_PARSE_H

#include "csum.h"

#if XR_FAMILY == 6
#include "ipv6.h"
#define OTHER_ETHERTYPE ETH_P_IP
#else
#include "ipv4.h"
#define OTHER_ETHERTYPE ETH_P_IPV6
#endif

static __always_inline int is_vlan_tag(__be16 proto)
{
	return proto == xr_htons(ETH_P_8021Q) || proto == xr_htons(ETH_P_8021AD);
}

/* What is shorter than a frame's head with two tags, which no packet of ours is. */
static __always_inline int parse_short(const struct ethhdr *eth, void *data_end)
{
	const struct vlan_tag *tag = (void *)(eth + 1);
	__be16 proto;

	if ((void *)tag > data_end)
		return PARSE_MALFORMED;
	proto = eth->h_proto;
	if (is_vlan_tag(proto) && (void *)(tag + 1) <= data_end)
		proto = tag->inner_proto;
	if (proto == xr_htons(OTHER_ETHERTYPE))
		return PARSE_OTHER_FAMILY;
	if (proto == xr_htons(IP_ETHERTYPE) || is_vlan_tag(proto))
		return PARSE_MALFORMED;
	return PARSE_NOT_IP;
}

static __always_inline int parse_ethernet(void *data, void *data_end, struct packet *p)
{
	struct ethhdr *eth = data;
	__be16 proto;
	void *at = eth + 1;
	__u64 l3_off;
	int i;

	/* One comparison, not one for each tag: so the verifier knows the same of the frame
	 * however many it had. */
	if (data + L3_OFF_MAX > data_end)
		return parse_short(eth, data_end);
	p->eth = eth;
	proto = eth->h_proto;
#pragma unroll
	for (i = 0; i < XR_MAX_VLAN_TAGS; i++) {
		struct vlan_tag *tag = at;

		if (!is_vlan_tag(proto))
			break;
		at = tag + 1;
		proto = tag->inner_proto;
	}
	if (proto != xr_htons(IP_ETHERTYPE))
		return proto == xr_htons(OTHER_ETHERTYPE) ? PARSE_OTHER_FAMILY : PARSE_NOT_IP;
	/* The same place by a distance that the verifier knows only roughly: so the rest of the
	 * program looks the same after 0, 1 or 2 tags, and it is walked once, not three times. */
	l3_off = at - data;
	asm volatile("" : "+r"(l3_off));
	if (l3_off > L3_OFF_MAX)
		return PARSE_MALFORMED;
	asm volatile("" : "+r"(l3_off)); /* what was compared, not what was spilled before: 6.1 */
	p->l3_off = l3_off;
	p->ip = data + l3_off;
	return PARSE_TCP;
}

/* Ports are where they are in both protocols. */
static __always_inline void key_of(struct packet *p, __u8 protocol)
{
	p->key.saddr = p->ip->saddr;
	p->key.daddr = p->ip->daddr;
	p->key.sport = p->udp->source;
	p->key.dport = p->udp->dest;
	p->key.proto = protocol;
	p->key.kind = XR_KIND_NONE;
	p->key.pad = 0;
}

/* A TCP header that is not all there: only in a first fragment there is sense in that. */
static __always_inline int parse_part_of_tcp(void *data_end, struct packet *p, __u8 more)
{
	if (!more || (void *)(p->udp + 1) > data_end || p->l4_len < sizeof(*p->udp))
		return PARSE_MALFORMED;
	key_of(p, IPPROTO_TCP);
	return PARSE_FRAGMENT_TINY;
}

static __always_inline int parse_tcp(void *data_end, struct packet *p, __u8 more)
{
	struct tcphdr *tcp = p->tcp;
	__u32 header_len;

	if ((void *)(tcp + 1) > data_end || p->l4_len < sizeof(*tcp))
		return parse_part_of_tcp(data_end, p, more);
	header_len = tcp->doff * 4;
	if (header_len < sizeof(*tcp))
		return PARSE_MALFORMED;
	if (p->l4_len < header_len)
		return parse_part_of_tcp(data_end, p, more);
	key_of(p, IPPROTO_TCP);
	p->seq = xr_ntohl(tcp->seq);
	p->ack = xr_ntohl(tcp->ack_seq);
	p->window = xr_ntohs(tcp->window);
	p->payload = p->l4_len - header_len;
	p->flags = ((__u8 *)tcp)[13];
	return PARSE_TCP;
}

static __always_inline int parse_udp(void *data_end, struct packet *p, __u8 more)
{
	struct udphdr *udp = p->udp;
	__u32 length;

	if ((void *)(udp + 1) > data_end || p->l4_len < sizeof(*udp))
		return PARSE_MALFORMED;
	key_of(p, IPPROTO_UDP);
	length = more ? p->l4_len : xr_ntohs(udp->len);
	if (length < sizeof(*udp) || length > p->l4_len)
		return PARSE_MALFORMED;
	p->seq = 0;
	p->ack = 0;
	p->window = 0;
	p->flags = 0;
	p->payload = length - sizeof(*udp);
	return PARSE_UDP;
}

static __always_inline int parse_whole(struct xdp_md *ctx, struct packet *p, __u8 *more)
{
	void *data = (void *)(long)ctx->data;
	void *data_end = (void *)(long)ctx->data_end;
	__u64 frame_len = data_end - data;
	__u8 protocol = 0;
	int result;

	/* Subtracted in 64 bits: clang would narrow it, and the verifier refuses pointer
	 * arithmetic in 32 ("32-bit pointer arithmetic prohibited"). */
	asm volatile("" : "+r"(frame_len));
	p->frame_len = frame_len;
	result = parse_ethernet(data, data_end, p);
	if (result != PARSE_TCP)
		return result;
	result = parse_ip(data_end, p, &protocol, more);
	if (result != PARSE_WHOLE)
		return result;
	if (protocol == IPPROTO_TCP)
		return parse_tcp(data_end, p, *more);
	if (protocol == IPPROTO_UDP)
		return parse_udp(data_end, p, *more);
	return protocol == IP_ICMP && !*more ? PARSE_ICMP : PARSE_OTHER_PROTOCOL;
}

/*
 * As a stage sees a packet. It gets first fragments of service traffic, too, and they are to it
 * what their headers say; p->payload is what of the payload is in there.
 */
static __always_inline int parse_packet(struct xdp_md *ctx, struct packet *p)
{
	__u8 more = 0;

	return parse_whole(ctx, p, &more);
}

/* As the entry does, which leaves every fragment to stage_fragment. */
static __always_inline int parse_entry(struct xdp_md *ctx, struct packet *p)
{
	__u8 more = 0;
	int result = parse_whole(ctx, p, &more);

	if (more && (result == PARSE_TCP || result == PARSE_UDP || result == PARSE_FRAGMENT_TINY))
		return PARSE_FRAGMENT_FIRST;
	return result;
}

/* Is the result one of a whole packet with ports? */
static __always_inline int has_ports(int result)
{
	return result == PARSE_TCP || result == PARSE_UDP;
}

#define L4_OFF_MAX 2047 /* Ethernet with tags, and IP with all that is walked */

/*
 * The same for either protocol, and the verifier does not know for which: so it walks the rest
 * of the program once for both, as for the tags above. How much of the segment is there is
 * forgotten with it, see tcp_is_there().
 */
static __always_inline int parse_either(struct xdp_md *ctx, struct packet *p)
{
	void *data = (void *)(long)ctx->data;
	int result = parse_packet(ctx, p);
	__u64 l4_off, zero;

	if (!has_ports(result))
		return result;
	zero = unknown_zero(data);
	l4_off = p->l4 - data;
	if (l4_off > L4_OFF_MAX)
		return PARSE_MALFORMED;
	p->l4 = data + l4_off;
	p->key.proto += zero;
	return result + zero;
}

static __always_inline int tcp_is_there(struct xdp_md *ctx, const struct packet *p)
{
	return (void *)(p->tcp + 1) <= (void *)(long)ctx->data_end;
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
	/* Any number, so that what is known of the first option is not known of the segment. */
	__u32 at = unknown_zero(options) & 63, next;
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
