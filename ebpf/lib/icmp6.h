/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ICMPv6 (RFC 4443). lib/icmp4.h has the same functions for the other family. */
#ifndef XR_ICMP6_H
#define XR_ICMP6_H

#include "icmp_quote.h"
#include "send.h"

/* As much of the packet as the smallest MTU of IPv6 holds (RFC 4443, 2.4 c). */
#define ERROR_HEAD (sizeof(ip_header_t) + sizeof(struct icmp_header))
#define ERROR_QUOTE_MAX (1280 - ERROR_HEAD)
#define ERROR_TOS 0xc0 /* as with IPv4 */

/*
 * Is the packet an error about another one? Types below 128 are; of what is not assigned
 * nothing is known. Neighbour discovery, MLD and redirects are beyond, and for the host.
 */
static __always_inline int is_icmp_error(struct xdp_md *ctx, const struct packet *p)
{
	const struct icmp_header *icmp = p->l4;

	return (void *)(icmp + 1) <= (void *)(long)ctx->data_end &&
	       icmp->type >= ICMP_DEST_UNREACH && icmp->type <= ICMP_PARAMETER_PROBLEM;
}

static __always_inline int is_too_big(const struct icmp_header *icmp)
{
	return icmp->type == ICMP_TOO_BIG;
}

/* Finds what an error embeds. 0: nothing that can be told from other traffic. */
static __always_inline int parse_quote(struct xdp_md *ctx, const struct packet *p,
				       struct quote *quote)
{
	void *data_end = (void *)(long)ctx->data_end;
	struct icmp_header *icmp = p->l4;
	ip_header_t *inner = (void *)(icmp + 1);
	struct extensions chain;
	struct tcphdr *tcp;
	__u64 length;

	if ((void *)(inner + 1) > data_end || !is_ipv6(inner) ||
	    walk_extensions(inner, data_end, &chain) != PARSE_WHOLE ||
	    !quotes_ports(chain.protocol) || p->l4_len < sizeof(*icmp) + chain.length + QUOTE_MIN)
		return 0;
	/* Known by the walk already; Linux 6.1 forgets bounds of what was on the stack meanwhile:
	 * "math between pkt pointer and register with unbounded min value is not allowed". */
	length = chain.length;
	asm volatile("" : "+r"(length));
	if (length > EXTENSIONS_LENGTH_MAX)
		return 0;
	tcp = (void *)inner + length;
	if ((void *)tcp + QUOTE_MIN > data_end)
		return 0;
	quote->icmp = icmp;
	quote->ip = inner;
	quote->tcp = tcp;
	quote->key.saddr = inner->saddr;
	quote->key.daddr = inner->daddr;
	quote->key.sport = tcp->source;
	quote->key.dport = tcp->dest;
	quote->key.proto = chain.protocol;
	quote->key.kind = XR_KIND_NONE;
	quote->key.pad = 0;
	quote->l4_len = p->l4_len - sizeof(*icmp) - chain.length;
	return 1;
}

/* The embedded packet as its sender sent it, and the error addressed to that sender. */
static __always_inline void rewrite_error(struct xdp_md *ctx, struct packet *p,
					  const struct quote *quote, const struct route_back *to)
{
	/* A hop on the way speaks for itself; the one it was sent to has another address there. */
	int from_end = addr_equal(p->ip->saddr, quote->key.daddr);
	void *data_end = (void *)(long)ctx->data_end;
	struct tcphdr *tcp = quote->tcp;
	__u16 l4, old;
	__u32 sum;

	l4 = csum_delta_l4(&quote->key, csum_delta_addrs(&quote->key, to->daddr, to->saddr),
			   to->dport, to->sport);
	sum = l4; /* what changes: addresses and ports, their sum, and the pseudo header */
	quote->ip->saddr = to->daddr;
	quote->ip->daddr = to->saddr;
	tcp->source = to->dport;
	tcp->dest = to->sport;
	if (quote->key.proto == IPPROTO_UDP) {
		struct udphdr *udp = (void *)tcp;

		old = udp->check;
		udp_csum_apply(udp, l4);
		sum += (__u16)~old + udp->check;
	} else if (quote->l4_len >= QUOTE_TO_CHECK && (void *)tcp + QUOTE_TO_CHECK <= data_end) {
		old = tcp->check;
		tcp->check = csum_apply(old, l4);
		sum += (__u16)~old + tcp->check;
	}
	sum += csum_fold(csum_add_addr(csum_sub_addr(0, p->ip->daddr), to->daddr));
	p->ip->daddr = to->daddr;
	if (from_end) {
		sum += csum_fold(csum_add_addr(csum_sub_addr(0, p->ip->saddr), to->saddr));
		p->ip->saddr = to->saddr;
	}
	quote->icmp->checksum = csum_apply(quote->icmp->checksum, sum);
}

/*
 * Sends the error that scratch->icmp_error names back to where the packet came from, from
 * the address of the interface that it came in by. Quoted is what was received.
 */
static __always_inline int send_error(struct xdp_md *ctx, const struct packet *p,
				      const struct icmp_error_state *error, addr_t source)
{
	__u32 quoted = p->ip_len < ERROR_QUOTE_MAX ? p->ip_len : ERROR_QUOTE_MAX;
	__u32 l3_off = p->l3_off, length = p->frame_len;
	addr_t target = p->ip->saddr;
	struct icmp_header *icmp;
	void *data, *data_end;
	struct ethhdr head;
	__u32 *word;
	__u16 *half;
	__be32 tags[XR_MAX_VLAN_TAGS];
	ip_header_t *ip;
	struct ethhdr *eth;
	__u64 sum;
	int i;

	if (bpf_xdp_adjust_tail(ctx, (int)(l3_off + quoted) - (int)length) ||
	    bpf_xdp_adjust_head(ctx, -(int)ERROR_HEAD))
		return XDP_DROP;
	data = (void *)(long)ctx->data;
	data_end = (void *)(long)ctx->data_end;
	if (l3_off > L3_OFF_MAX || data + ERROR_HEAD + L3_OFF_MAX > data_end)
		return XDP_DROP;
	/* What was in front may lie where our headers will: it is read before they are written. */
	__builtin_memcpy(&head, data + ERROR_HEAD, sizeof(head));
	__builtin_memcpy(tags, data + ERROR_HEAD + sizeof(head), sizeof(tags));
	eth = data;
	mac_copy(eth->h_dest, head.h_source);
	mac_copy(eth->h_source, head.h_dest);
	eth->h_proto = head.h_proto;
	__builtin_memcpy(data + sizeof(head), tags, sizeof(tags));

	ip = data + l3_off;
	icmp = (void *)(ip + 1);
	if ((void *)(icmp + 1) > data_end)
		return XDP_DROP;
	own_ip_header(ip, ERROR_HEAD + quoted, IP_ICMP, ERROR_TOS, source, target);

	icmp->type = error->type;
	icmp->code = error->code;
	icmp->checksum = 0;
	icmp->rest = xr_htonl(error->mtu);
	sum = pseudo_sum(source, target, IP_ICMP, sizeof(*icmp) + quoted);
	word = (void *)icmp;
	for (i = 0; i < (int)(ERROR_QUOTE_MAX + sizeof(*icmp)) / 4; i++) {
		if ((void *)(word + 1) > data_end)
			break;
		sum += *word++;
	}
	half = (void *)word; /* up to three bytes are left */
	if ((void *)(half + 1) <= data_end)
		sum += *half++;
	if ((void *)half + 1 <= data_end)
		sum += *(__u8 *)half;
	icmp->checksum = ~csum_fold64(sum);
	count(counter_of_error(error));
	return bounce(ctx);
}

#endif
