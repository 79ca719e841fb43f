/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A packet as the program knows it. Multi-byte header fields stay in network byte order;
 * `struct packet` holds host order except for its flow key.
 */
#ifndef XR_PACKET_H
#define XR_PACKET_H

#include <linux/tcp.h>
#include <linux/udp.h>

#include "family.h"

#define xr_htons(x) ((__be16)__builtin_bswap16((__u16)(x)))
#define xr_ntohs(x) ((__u16)__builtin_bswap16((__u16)(x)))
#define xr_htonl(x) ((__be32)__builtin_bswap32((__u32)(x)))
#define xr_ntohl(x) ((__u32)__builtin_bswap32((__u32)(x)))

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "byte order helpers assume a little-endian target"
#endif

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

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

#define OWN_TTL 64 /* of packets that we make */

enum parse_result {
	PARSE_TCP = 0,
	PARSE_UDP,
	PARSE_ICMP,
	PARSE_FRAGMENT_FIRST, /* parse_entry(): ports are valid */
	PARSE_FRAGMENT_TINY,  /* the same, and its TCP header ends in a later one */
	PARSE_FRAGMENT_LATER,
	PARSE_OTHER_FAMILY, /* IP, but of the other one */
	PARSE_NOT_IP,
	PARSE_OTHER_PROTOCOL, /* neither TCP, UDP nor ICMP */
	PARSE_EXTENSIONS,     /* more of them than are walked */
	PARSE_MALFORMED,
	PARSE_WHOLE, /* parse_ip(): there is something to parse behind it */
};

struct packet {
	struct ethhdr *eth;
	ip_header_t *ip;
	union {
		void *l4;
		struct tcphdr *tcp;
		struct udphdr *udp;
	};
	flow_key_t key; /* kind XR_KIND_NONE */
	__u32 seq;
	__u32 ack;
	__u16 window;
	__u16 ip_len;  /* of the IP packet: padding of the frame is not payload */
	__u16 l4_len;  /* of what follows the IP header */
	__u16 payload; /* bytes behind the TCP or UDP header */
	__u32 frame_len;
	__u8 flags; /* low byte of the TCP flags */
	__u8 l3_off;
};

/* What all fragments of a datagram have in common beside addresses, see fragment_id(). */
struct fragment_id {
	__be32 id;
	__u8 protocol;
	__u64 at; /* of IPv6: where the header is that has the ID, from the IP header on */
};

/*
 * 0, which the verifier takes for any number: so it knows as little of what is computed with it
 * whatever the way there was, and walks the rest of the program once for all of them.
 */
static __always_inline __u64 unknown_zero(void *packet)
{
	void *same = packet;
	__u64 zero;

	asm volatile("" : "+r"(same));
	zero = same - packet;
	asm volatile("" : "+r"(zero)); /* subtracted in 64 bits, see parse_whole() */
	return zero;
}

#define L3_OFF_MAX (sizeof(struct ethhdr) + XR_MAX_VLAN_TAGS * sizeof(struct vlan_tag))

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

#endif
