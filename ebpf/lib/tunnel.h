/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * An IP header in front of the packet (RFC 2003, RFC 2473, RFC 4213): of the family of the
 * backend's address, whatever the family of the packet.
 */
#ifndef XR_TUNNEL_H
#define XR_TUNNEL_H

#include "binding.h"

#define OUTER_FLOW_LABEL 0xfffffU /* RFC 8200, 3: 20 bits */

/* Both headers, whatever this program's family is. */
struct outer_ipv6 {
	__be32 flow; /* version, traffic class, flow label */
	__be16 payload_len;
	__u8 next_header;
	__u8 hop_limit;
	struct ip_addr saddr;
	struct ip_addr daddr;
};

static __always_inline int is_ipv4(const struct ip_addr *addr)
{
	return !(addr->word[0] | addr->word[1]) && addr->word[2] == xr_htonl(0xffff);
}

static __always_inline __u32 tunnel_overhead(const struct backend *backend)
{
	return is_ipv4(&backend->addr) ? sizeof(struct iphdr) : sizeof(struct outer_ipv6);
}

/*
 * Where the outer header says that the packet comes from. Receivers spread what comes in over
 * their queues by addresses: with a prefix of our own they have some to go by.
 */
static __always_inline struct ip_addr tunnel_source(const struct service *service,
						    const struct backend *backend, __u32 hash)
{
	struct ip_addr source = backend->probe_addr;
	__u32 bits;

	if (!service || !(service->tunnel_source.word[0] | service->tunnel_source.word[2]))
		return source;
	source = service->tunnel_source;
	bits = service->tunnel_bits;
	if (bits < 32)
		hash &= (1U << bits) - 1;
	source.word[3] |= xr_htonl(hash);
	return source;
}

/*
 * Makes room in front of the IP header, and moves what lies before it, with another
 * EtherType. 0, or there is no room.
 */
static __always_inline int make_room(struct xdp_md *ctx, __u32 l3_off, int length, __be16 ethertype)
{
	__be32 tags[XR_MAX_VLAN_TAGS];
	void *data, *data_end;
	struct ethhdr head;
	__be16 *type;
	__u64 type_at;

	if (bpf_xdp_adjust_head(ctx, -length))
		return -1;
	data = (void *)(long)ctx->data;
	data_end = (void *)(long)ctx->data_end;
	if (l3_off < sizeof(head) || l3_off > L3_OFF_MAX ||
	    data + length + sizeof(head) + sizeof(tags) > data_end)
		return -1;
	/* It is read before it is written: the one may lie over the other. */
	__builtin_memcpy(&head, data + length, sizeof(head));
	__builtin_memcpy(tags, data + length + sizeof(head), sizeof(tags));
	__builtin_memcpy(data, &head, sizeof(head));
	__builtin_memcpy(data + sizeof(head), tags, sizeof(tags));
	type_at = l3_off - sizeof(*type);
	/* Else clang makes it data + l3_off - 2, and "offset is outside of the packet". */
	asm volatile("" : "+r"(type_at));
	if (type_at > L3_OFF_MAX)
		return -1;
	type = data + type_at;
	if ((void *)(type + 1) > data_end)
		return -1;
	*type = ethertype;
	return 0;
}

/* DSCP and ECN are the packet's own (RFC 6040, normal mode); it may not be fragmented. */
static __always_inline int put_outer_ipv4(struct xdp_md *ctx, const struct packet *p, __u8 tos,
					  const struct ip_addr *source,
					  const struct ip_addr *destination)
{
	__u32 l3_off = p->l3_off, sum = 0;
	__u16 length = p->ip_len + sizeof(struct iphdr);
	struct iphdr *ip;
	int i;

	if (make_room(ctx, l3_off, sizeof(*ip), xr_htons(ETH_P_IP)) || l3_off > L3_OFF_MAX)
		return -1;
	ip = (void *)(long)ctx->data + l3_off;
	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return -1;
	__builtin_memset(ip, 0, sizeof(*ip));
	ip->version = 4;
	ip->ihl = sizeof(*ip) / 4;
	ip->tos = tos;
	ip->tot_len = xr_htons(length);
	ip->frag_off = xr_htons(0x4000);
	ip->ttl = OWN_TTL;
	ip->protocol = IP_IN_IP;
	ip->saddr = source->word[3];
	ip->daddr = destination->word[3];
#pragma unroll
	for (i = 0; i < (int)sizeof(*ip) / 2; i++)
		sum += ((__u16 *)ip)[i];
	ip->check = ~csum_fold(sum);
	return 0;
}

static __always_inline int put_outer_ipv6(struct xdp_md *ctx, const struct packet *p, __u8 tos,
					  const struct ip_addr *source,
					  const struct ip_addr *destination, __u32 hash)
{
	__u32 l3_off = p->l3_off;
	__u16 length = p->ip_len;
	struct outer_ipv6 *ip;

	if (make_room(ctx, l3_off, sizeof(*ip), xr_htons(ETH_P_IPV6)) || l3_off > L3_OFF_MAX)
		return -1;
	ip = (void *)(long)ctx->data + l3_off;
	if ((void *)(ip + 1) > (void *)(long)ctx->data_end)
		return -1;
	ip->flow = xr_htonl(0x60000000U | (__u32)tos << 20 | (hash & OUTER_FLOW_LABEL));
	ip->payload_len = xr_htons(length);
	ip->next_header = IP_IN_IP;
	ip->hop_limit = OWN_TTL;
	ip->saddr = *source;
	ip->daddr = *destination;
	return 0;
}

/* Puts the outer header in front. 0, or there is no room for it. */
static __always_inline int encapsulate(struct xdp_md *ctx, const struct packet *p,
				       const struct service *service, const struct backend *backend,
				       __u32 hash)
{
	struct ip_addr source = tunnel_source(service, backend, hash);
	__u8 tos = ip_tos(p->ip);

	if (is_ipv4(&backend->addr))
		return put_outer_ipv4(ctx, p, tos, &source, &backend->addr);
	return put_outer_ipv6(ctx, p, tos, &source, &backend->addr, hash);
}

#endif
