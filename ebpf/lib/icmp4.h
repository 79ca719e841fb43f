/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ICMP for IPv4 (RFC 792). lib/icmp6.h has the same functions for the other family. */
#ifndef XR_ICMP4_H
#define XR_ICMP4_H

#include "icmp_quote.h"
#include "send.h"

/* As much of the packet as a datagram of 576 bytes holds (RFC 1812, 4.3.2.3). */
#define ERROR_QUOTE_MAX (576 - ERROR_HEAD)
#define ERROR_HEAD (sizeof(struct iphdr) + sizeof(struct icmp_header))
#define ERROR_TOS 0xc0 /* internetwork control (RFC 1812, 4.3.2.5) */

/* Is the packet an error about another one? Redirects (5) are for the host itself. */
static __always_inline int is_icmp_error(struct xdp_md *ctx, const struct packet *p)
{
	const struct icmp_header *icmp = p->l4;

	return (void *)(icmp + 1) <= (void *)(long)ctx->data_end &&
	       (icmp->type == ICMP_DEST_UNREACH || icmp->type == ICMP_TIME_EXCEEDED ||
		icmp->type == ICMP_PARAMETER_PROBLEM);
}

static __always_inline int is_too_big(const struct icmp_header *icmp)
{
	return icmp->type == ICMP_DEST_UNREACH && icmp->code == ICMP_TOO_BIG_CODE;
}

/* Finds what an error embeds. 0: nothing that can be told from other traffic. */
static __always_inline int parse_quote(struct xdp_md *ctx, const struct packet *p,
				       struct quote *quote)
{
	void *data_end = (void *)(long)ctx->data_end;
	__u32 outer_len = p->ip->ihl * 4, inner_len, head_len;
	struct icmp_header *icmp = (void *)p->ip + outer_len;
	ip_header_t *inner = (void *)(icmp + 1);
	struct tcphdr *tcp;

	if ((void *)(inner + 1) > data_end)
		return 0;
	inner_len = inner->ihl * 4;
	head_len = outer_len + sizeof(*icmp) + inner_len;
	if (inner->version != 4 || inner_len < sizeof(*inner) || !quotes_ports(inner->protocol) ||
	    (inner->frag_off & xr_htons(IP_FRAGMENT_OFFSET)) || p->ip_len < head_len + QUOTE_MIN)
		return 0;
	tcp = (void *)inner + inner_len;
	if ((void *)tcp + QUOTE_MIN > data_end)
		return 0;
	quote->icmp = icmp;
	quote->ip = inner;
	quote->tcp = tcp;
	quote->key.saddr = inner->saddr;
	quote->key.daddr = inner->daddr;
	quote->key.sport = tcp->source;
	quote->key.dport = tcp->dest;
	quote->key.proto = inner->protocol;
	quote->key.kind = XR_KIND_NONE;
	quote->key.pad = 0;
	quote->l4_len = p->ip_len - head_len;
	return 1;
}

/* The embedded packet as its sender sent it, and the error addressed to that sender. */
static __always_inline void rewrite_error(struct xdp_md *ctx, struct packet *p,
					  const struct quote *quote, const struct route_back *to)
{
	flow_key_t outer = {.saddr = p->ip->saddr, .daddr = p->ip->daddr};
	/* A hop on the way speaks for itself; the one it was sent to has another address there. */
	addr_t saddr = addr_equal(outer.saddr, quote->key.daddr) ? to->saddr : outer.saddr;
	void *data_end = (void *)(long)ctx->data_end;
	struct tcphdr *tcp = quote->tcp;
	__u16 l3, l4, old;
	__u32 sum;

	l3 = csum_delta_addrs(&quote->key, to->daddr, to->saddr);
	l4 = csum_delta_l4(&quote->key, l3, to->dport, to->sport);
	sum = l4; /* what changes in the message: addresses and ports, and both sums */
	quote->ip->saddr = to->daddr;
	quote->ip->daddr = to->saddr;
	old = quote->ip->check;
	quote->ip->check = csum_apply(old, l3);
	sum += (__u16)~old + quote->ip->check;
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
	quote->icmp->checksum = csum_apply(quote->icmp->checksum, sum);

	p->ip->check = csum_apply(p->ip->check, csum_delta_addrs(&outer, saddr, to->daddr));
	p->ip->saddr = saddr;
	p->ip->daddr = to->daddr;
}

/*
 * Sends the error that scratch->icmp_error names back to where the packet came from, from
 * the address of the interface that it came in by. Quoted is what was received, in whole
 * words: its headers always are.
 */
static __always_inline int send_error(struct xdp_md *ctx, const struct packet *p,
				      const struct icmp_error_state *error, addr_t source)
{
	__u32 quoted = p->ip_len < ERROR_QUOTE_MAX ? p->ip_len & ~3U : ERROR_QUOTE_MAX;
	__u32 l3_off = p->l3_off, length = p->frame_len;
	addr_t target = p->ip->saddr;
	struct icmp_header *icmp;
	void *data, *data_end;
	struct ethhdr head;
	__u32 *word;
	__be32 tags[XR_MAX_VLAN_TAGS];
	ip_header_t *ip;
	struct ethhdr *eth;
	__u64 sum = 0;
	int i;

	if (bpf_xdp_adjust_tail(ctx, (int)(l3_off + quoted) - (int)length) ||
	    bpf_xdp_adjust_head(ctx, -(int)ERROR_HEAD))
		return XDP_DROP;
	data = (void *)(long)ctx->data;
	data_end = (void *)(long)ctx->data_end;
	if (l3_off > L3_OFF_MAX || data + ERROR_HEAD + L3_OFF_MAX > data_end)
		return XDP_DROP;
	/* What was in front lies where our headers will: it is read before they are written. */
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
	own_ip_header(ip, ERROR_HEAD + quoted, IPPROTO_ICMP, ERROR_TOS, source, target);

	icmp->type = error->type;
	icmp->code = error->code;
	icmp->checksum = 0;
	icmp->rest = xr_htonl(error->mtu); /* RFC 1191: the lower half */
	word = (void *)icmp;
	for (i = 0; i < (int)(ERROR_QUOTE_MAX + sizeof(*icmp)) / 4; i++) {
		if ((void *)(word + 1) > data_end)
			break;
		sum += *word++;
	}
	icmp->checksum = ~csum_fold64(sum);
	count(counter_of_error(error));
	return bounce(ctx);
}

#endif
