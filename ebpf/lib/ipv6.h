/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The header of IPv6 and its extensions (RFC 8200). lib/ipv4.h has the same functions. */
#ifndef XR_IPV6_H
#define XR_IPV6_H

#include "csum.h"

#define IP_ETHERTYPE ETH_P_IPV6
#define IP_ICMP 58
#define IP_IN_IP 41 /* its protocol number inside another IP header */

/* RFC 4443 */
#define ICMP_DEST_UNREACH 1
#define ICMP_PORT_UNREACH 4 /* a code of it */
#define ICMP_TOO_BIG 2
#define ICMP_TOO_BIG_CODE 0
#define ICMP_TIME_EXCEEDED 3
#define ICMP_PARAMETER_PROBLEM 4
#define ICMP_ECHO_REQUEST 128
#define ICMP_ECHO_REPLY 129

#define IPV6_HOP_BY_HOP 0
#define IPV6_ROUTING 43
#define IPV6_FRAGMENT 44
#define IPV6_DESTINATION 60

#define FRAGMENT_OFFSET 0xfff8
#define FRAGMENT_MORE 0x0001
#define SEGMENTS_LEFT 0x00ff

struct extension {
	__u8 protocol; /* next header */
	__u8 length;   /* in 8 bytes, without the first 8; a fragment header has none */
	__be16 offset; /* of a fragment header: offset and M flag; of a routing header: type, then
			* how many segments are left */
	__be32 id;
};

/*
 * Extension headers walked: hop-by-hop, destination options, routing, fragment, destination
 * options are all that RFC 8200, 4.1 knows in one packet, and one is to spare.
 */
#define EXTENSIONS_MAX 6
#define EXTENSIONS_LENGTH_MAX 1024

static __always_inline int is_extension(__u8 protocol)
{
	return protocol == IPV6_HOP_BY_HOP || protocol == IPV6_ROUTING ||
	       protocol == IPV6_FRAGMENT || protocol == IPV6_DESTINATION;
}

/* What stands between an IPv6 header and what the packet carries. */
struct extensions {
	__u64 length;  /* with the IPv6 header itself */
	__u8 protocol; /* what is behind */
	__u8 more;     /* it is a first fragment */
};

static __always_inline int is_ipv6(const ip_header_t *ip)
{
	return (ip->flow & xr_htonl(0xf0000000)) == xr_htonl(0x60000000);
}

/* The caller has checked that the header itself is there. */
static __always_inline int walk_extensions(ip_header_t *ip, void *data_end,
					   struct extensions *chain)
{
	__u64 zero = unknown_zero(ip);
	__u64 is_first = zero;
	__u64 at = sizeof(*ip) + zero;
	__u64 kind = ip->protocol;
	int i;

	for (i = 0; i < EXTENSIONS_MAX && is_extension(kind); i++) {
		struct extension *extension;
		__u32 length;
		__u64 here;

		/* A copy, that what is checked be what is used: read from the stack twice it is
		 * not to Linux 6.1. */
		here = at;
		asm volatile("" : "+r"(here));
		if (here > EXTENSIONS_LENGTH_MAX)
			return PARSE_EXTENSIONS;
		extension = (void *)ip + here;
		if ((void *)(extension + 1) > data_end)
			return PARSE_MALFORMED;
		length = 8;
		if (kind == IPV6_FRAGMENT) {
			if (extension->offset & xr_htons(FRAGMENT_OFFSET))
				return PARSE_FRAGMENT_LATER;
			if (extension->offset & xr_htons(FRAGMENT_MORE))
				is_first = 1;
		} else {
			/* On its way to somebody else: we are a stop only (RFC 8200, 4.4). */
			if (kind == IPV6_ROUTING && (extension->offset & xr_htons(SEGMENTS_LEFT)))
				return PARSE_EXTENSIONS;
			length = 8 + extension->length * 8U;
		}
		kind = extension->protocol;
		at += length;
	}
	if (at > EXTENSIONS_LENGTH_MAX || is_extension((__u8)kind))
		return PARSE_EXTENSIONS;
	chain->length = at;
	chain->protocol = kind;
	chain->more = is_first;
	return PARSE_WHOLE;
}

/* Finds what the packet carries, and where; sets p->ip_len and p->l4. `more`: fragments follow. */
static __always_inline int parse_ip(void *data_end, struct packet *p, __u8 *protocol, __u8 *more)
{
	ip_header_t *ip = p->ip;
	struct extensions chain;
	int result;

	if ((void *)(ip + 1) > data_end)
		return PARSE_MALFORMED;
	if (!is_ipv6(ip) || p->l3_off + sizeof(*ip) + xr_ntohs(ip->payload_len) > p->frame_len)
		return PARSE_MALFORMED;
	p->ip_len = sizeof(*ip) + xr_ntohs(ip->payload_len);
	result = walk_extensions(ip, data_end, &chain);
	if (result != PARSE_WHOLE)
		return result;
	if (p->ip_len < chain.length)
		return PARSE_MALFORMED;
	*protocol = chain.protocol;
	p->l4 = (void *)ip + chain.length;
	p->l4_len = p->ip_len - chain.length;
	*more = chain.more;
	return PARSE_WHOLE;
}

/* 0: it is no fragment. */
static __always_inline int fragment_id(const ip_header_t *ip, void *data_end,
				       struct fragment_id *found)
{
	__u64 at = sizeof(*ip) + unknown_zero((void *)ip);
	__u64 kind = ip->protocol;
	int i;

	for (i = 0; i < EXTENSIONS_MAX && is_extension(kind) && at <= EXTENSIONS_LENGTH_MAX; i++) {
		const struct extension *extension = (void *)ip + at;

		if ((void *)(extension + 1) > data_end)
			return 0;
		if (kind == IPV6_FRAGMENT) {
			found->id = extension->id;
			found->protocol = extension->protocol;
			found->at = at + unknown_zero((void *)ip);
			return 1;
		}
		kind = extension->protocol;
		at += 8 + extension->length * 8U;
	}
	return 0;
}

/* Gives a fragment, of which fragment_id() is known, another one. */
static __always_inline void fragment_renumber(ip_header_t *ip, void *data_end, __u64 at, __u32 id)
{
	struct extension *extension;

	if (at > EXTENSIONS_LENGTH_MAX)
		return;
	extension = (void *)ip + at;
	if ((void *)(extension + 1) <= data_end)
		extension->id = xr_htonl(id);
}

/* Without extension headers, as what we send is? */
static __always_inline int is_plain_ip(const ip_header_t *ip)
{
	return !is_extension(ip->protocol);
}

/* DSCP and ECN: the traffic class. */
static __always_inline __u8 ip_tos(const ip_header_t *ip)
{
	return xr_ntohl(ip->flow) >> 20;
}

/* Routers never do that (RFC 8200, 5). */
static __always_inline int may_be_fragmented(const struct packet *p)
{
	(void)p;
	return 0;
}

static __always_inline int is_first_fragment(const struct packet *p)
{
	(void)p; /* no matter: it is answered as every packet is */
	return 0;
}

static __always_inline __u32 csum_add_addr(__u32 sum, addr_t addr)
{
	sum = csum_add32(csum_add32(sum, addr.word[0]), addr.word[1]);
	return csum_add32(csum_add32(sum, addr.word[2]), addr.word[3]);
}

static __always_inline __u32 csum_sub_addr(__u32 sum, addr_t addr)
{
	sum = csum_add32(csum_add32(sum, ~addr.word[0]), ~addr.word[1]);
	return csum_add32(csum_add32(sum, ~addr.word[2]), ~addr.word[3]);
}

static __always_inline __u16 csum_delta_addrs(const flow_key_t *key, addr_t saddr, addr_t daddr)
{
	__u32 sum = csum_sub_addr(csum_sub_addr(0, key->saddr), key->daddr);

	return csum_fold(csum_add_addr(csum_add_addr(sum, saddr), daddr));
}

static __always_inline void ip_lower_ttl(ip_header_t *ip)
{
	ip->ttl--;
}

/* Other addresses; the header has no sum. */
static __always_inline void ip_readdress(ip_header_t *ip, addr_t saddr, addr_t daddr, __u16 delta)
{
	(void)delta;
	ip->saddr = saddr;
	ip->daddr = daddr;
}

/* The same packet on its way back, as one of ours: what was its destination sends it. */
static __always_inline void ip_turn_round(ip_header_t *ip)
{
	addr_t saddr = ip->saddr;

	ip->saddr = ip->daddr;
	ip->daddr = saddr;
	ip->ttl = OWN_TTL;
}

static __always_inline void ip_readdress_lower_ttl(ip_header_t *ip, addr_t saddr, addr_t daddr,
						   __u16 delta)
{
	ip_readdress(ip, saddr, daddr, delta);
	ip->ttl--;
}

/* The header of a packet of ours; `length` is that of all of it. */
static __always_inline void own_ip_header(ip_header_t *ip, __u16 length, __u8 protocol, __u8 tos,
					  addr_t saddr, addr_t daddr)
{
	ip->flow = xr_htonl(0x60000000U | (__u32)tos << 20);
	ip->payload_len = xr_htons(length - sizeof(*ip));
	ip->protocol = protocol;
	ip->ttl = OWN_TTL;
	ip->saddr = saddr;
	ip->daddr = daddr;
}

/* Sum of the pseudo header (RFC 8200, 8.1). */
static __always_inline __u32 pseudo_sum(addr_t saddr, addr_t daddr, __u8 protocol, __u16 length)
{
	return csum_fold(csum_add_addr(csum_add_addr(0, saddr), daddr)) + xr_htons(protocol) +
	       xr_htons(length);
}

/* What of an address goes into hashes. */
static __always_inline __u32 addr_fold(addr_t addr)
{
	return xr_ntohl(addr.word[0]) * 0x9e3779b1U ^ xr_ntohl(addr.word[1]) * 0x85ebca6bU ^
	       xr_ntohl(addr.word[2]) * 0xc2b2ae35U ^ xr_ntohl(addr.word[3]) * 0x27d4eb2fU;
}

static __always_inline struct ip_addr prefix_of(addr_t addr) /* /56 */
{
	addr.word[1] &= xr_htonl(0xffffff00U);
	addr.word[2] = 0;
	addr.word[3] = 0;
	return addr;
}

/*
 * Multicast (ff00::/8), of ::/96 (loopback, unspecified) or of ::ffff:0:0/96, which is never on a
 * wire (RFC 4291, 2.5): nobody who may be answered.
 */
static __always_inline int is_one_host(addr_t addr)
{
	return (xr_ntohl(addr.word[0]) >> 24) != 0xff &&
	       ((addr.word[0] | addr.word[1]) ||
		(addr.word[2] && addr.word[2] != xr_htonl(0xffff)));
}

/* Nobody else is a client: tables and events that both families share would take him for IPv4's. */
static __always_inline int may_be_client(addr_t addr)
{
	return is_one_host(addr);
}

/* Our address on an interface, and whether there is one. */
static __always_inline addr_t interface_addr(const struct interface *interface)
{
	return interface->addr6;
}

static __always_inline int has_addr(const struct interface *interface)
{
	return is_one_host(interface->addr6);
}

#endif
