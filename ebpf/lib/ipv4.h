/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The header of IPv4 (RFC 791). lib/ipv6.h has the same functions for the other family. */
#ifndef XR_IPV4_H
#define XR_IPV4_H

#include "csum.h"

#define IP_ETHERTYPE ETH_P_IP
#define IP_ICMP IPPROTO_ICMP
#define IP_IN_IP 4 /* its protocol number inside another IP header */

/* RFC 792; uapi linux/icmp.h drags in the C library. */
#define ICMP_ECHO_REPLY 0
#define ICMP_DEST_UNREACH 3
#define ICMP_PORT_UNREACH 3 /* a code of it */
#define ICMP_ECHO_REQUEST 8
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETER_PROBLEM 12
#define ICMP_TOO_BIG ICMP_DEST_UNREACH
#define ICMP_TOO_BIG_CODE 4 /* fragmentation needed */

#define IP_DONT_FRAGMENT 0x4000
#define IP_MORE_FRAGMENTS 0x2000
#define IP_FRAGMENT_OFFSET 0x1fff

/* Finds what the packet carries, and where; sets p->ip_len and p->l4. `more`: fragments follow. */
static __always_inline int parse_ip(void *data_end, struct packet *p, __u8 *protocol, __u8 *more)
{
	ip_header_t *ip = p->ip;
	__u32 header_len;

	if ((void *)(ip + 1) > data_end)
		return PARSE_MALFORMED;
	header_len = ip->ihl * 4;
	p->ip_len = xr_ntohs(ip->tot_len);
	if (ip->version != 4 || header_len < sizeof(*ip) || p->ip_len < header_len ||
	    p->l3_off + p->ip_len > p->frame_len)
		return PARSE_MALFORMED;
	if (ip->frag_off & xr_htons(IP_FRAGMENT_OFFSET))
		return PARSE_FRAGMENT_LATER;
	*protocol = ip->protocol;
	p->l4 = (void *)ip + header_len;
	p->l4_len = p->ip_len - header_len;
	*more = !!(ip->frag_off & xr_htons(IP_MORE_FRAGMENTS));
	return PARSE_WHOLE;
}

/* Of one that is cut already; later ones do not get where this is asked. */
static __always_inline int is_first_fragment(const struct packet *p)
{
	return !!(p->ip->frag_off & xr_htons(IP_MORE_FRAGMENTS));
}

/* 0: it is no fragment. */
static __always_inline int fragment_id(const ip_header_t *ip, void *data_end,
				       struct fragment_id *found)
{
	(void)data_end;
	found->id = xr_htonl(xr_ntohs(ip->id));
	found->protocol = ip->protocol;
	found->at = 0;
	return 1;
}

/* Gives a fragment, of which fragment_id() is known, another one. */
static __always_inline void fragment_renumber(ip_header_t *ip, void *data_end, __u64 at, __u32 id)
{
	__be16 before = ip->id;

	(void)data_end;
	(void)at;
	ip->id = xr_htons(id);
	ip->check = csum_apply(ip->check, (__u32)(__u16)~before + ip->id);
}

/* Without options, as what we send is? */
static __always_inline int is_plain_ip(const ip_header_t *ip)
{
	return ip->ihl == 5;
}

/* DSCP and ECN. */
static __always_inline __u8 ip_tos(const ip_header_t *ip)
{
	return ip->tos;
}

/* May a router cut the packet into fragments? */
static __always_inline int may_be_fragmented(const struct packet *p)
{
	return !(p->ip->frag_off & xr_htons(IP_DONT_FRAGMENT));
}

static __always_inline __u16 csum_delta_addrs(const flow_key_t *key, addr_t saddr, addr_t daddr)
{
	__u32 sum = 0;

	sum = csum_add32(sum, ~key->saddr);
	sum = csum_add32(sum, ~key->daddr);
	sum = csum_add32(sum, saddr);
	sum = csum_add32(sum, daddr);
	return csum_fold(sum);
}

/* TTL - 1 lowers the word (TTL, protocol) by 0x0100: adds ~0x0100 to the sum. */
#define CSUM_DELTA_TTL xr_htons(0xfeff)

static __always_inline void ip_lower_ttl(ip_header_t *ip)
{
	ip->ttl--;
	ip->check = csum_apply(ip->check, CSUM_DELTA_TTL);
}

/* Other addresses; `delta` is what they add to the header's sum. */
static __always_inline void ip_readdress(ip_header_t *ip, addr_t saddr, addr_t daddr, __u16 delta)
{
	ip->saddr = saddr;
	ip->daddr = daddr;
	ip->check = csum_apply(ip->check, delta);
}

/* The same packet on its way back, as one of ours: what was its destination sends it. */
static __always_inline void ip_turn_round(ip_header_t *ip)
{
	addr_t saddr = ip->saddr;
	__u32 sum =
		(__u16) ~*(__u16 *)&ip->ttl; /* TTL and protocol; the addresses only change place */

	ip->saddr = ip->daddr;
	ip->daddr = saddr;
	ip->ttl = OWN_TTL;
	ip->check = csum_apply(ip->check, sum + *(__u16 *)&ip->ttl);
}

/* Both at once: one sum less. */
static __always_inline void ip_readdress_lower_ttl(ip_header_t *ip, addr_t saddr, addr_t daddr,
						   __u16 delta)
{
	ip->saddr = saddr;
	ip->daddr = daddr;
	ip->ttl--;
	ip->check = csum_apply(ip->check, (__u32)delta + CSUM_DELTA_TTL);
}

/* The header of a packet of ours, without options; `length` is that of all of it. */
static __always_inline void own_ip_header(ip_header_t *ip, __u16 length, __u8 protocol, __u8 tos,
					  addr_t saddr, addr_t daddr)
{
	__u32 sum = 0;
	int i;

	__builtin_memset(ip, 0, sizeof(*ip));
	ip->version = 4;
	ip->ihl = sizeof(*ip) / 4;
	ip->tos = tos;
	ip->tot_len = xr_htons(length);
	ip->frag_off = xr_htons(IP_DONT_FRAGMENT);
	ip->ttl = OWN_TTL;
	ip->protocol = protocol;
	ip->saddr = saddr;
	ip->daddr = daddr;
#pragma unroll
	for (i = 0; i < (int)sizeof(*ip) / 2; i++)
		sum += ((__u16 *)ip)[i];
	ip->check = ~csum_fold(sum);
}

/* Sum of the pseudo header (RFC 9293, 3.1). */
static __always_inline __u32 pseudo_sum(addr_t saddr, addr_t daddr, __u8 protocol, __u16 length)
{
	return csum_add32(csum_add32(0, saddr), daddr) + xr_htons(protocol) + xr_htons(length);
}

/* What of an address goes into hashes. */
static __always_inline __u32 addr_fold(addr_t addr)
{
	return xr_ntohl(addr);
}

#define PREFIX_MASK 0xffffff00U /* /24 */

static __always_inline struct ip_addr prefix_of(addr_t addr)
{
	return shared_addr(addr & xr_htonl(PREFIX_MASK));
}

/* Our address on an interface, and whether there is one. */
static __always_inline addr_t interface_addr(const struct interface *interface)
{
	return interface->addr;
}

static __always_inline int has_addr(const struct interface *interface)
{
	return interface->addr != 0;
}

/* Multicast, broadcast, loopback or "this network": nobody who may be answered. */
static __always_inline int is_one_host(addr_t addr)
{
	__u8 first = xr_ntohl(addr) >> 24;

	return first != 0 && first != 127 && first < 224;
}

/* Whose packets are refused is left to the kernel that they are forwarded by. */
static __always_inline int may_be_client(addr_t addr)
{
	(void)addr;
	return 1;
}

#endif
