/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ICMP errors about a packet of a flow, translated and brought to the side that sent it:
 * path MTU discovery works through the router, and so does "unreachable".
 *
 * The error embeds the packet as it left us, with the tuple T. What its receiver sends,
 * reverse(T), has an entry, which rewrites it to R: so what was embedded came to us as
 * reverse(R), and its sender is R's destination.
 *
 * No check of the quoted sequence number: the ends do that themselves, against what they
 * have really sent (RFC 5927, 4); a guess that passes here dies there.
 */
#ifndef XR_ICMP_H
#define XR_ICMP_H

#include "binding.h"

#define QUOTE_MIN 8       /* of TCP: ports and sequence number (RFC 792) */
#define QUOTE_TO_CHECK 18 /* so much reaches beyond TCP's checksum */

/* Is the packet an error about another one? Redirects (5) are for the host itself. */
static __always_inline int is_icmp_error(struct xdp_md *ctx, const struct packet *p)
{
	const struct icmp_header *icmp = (void *)p->ip + p->ip->ihl * 4;

	return (void *)(icmp + 1) <= (void *)(long)ctx->data_end &&
	       (icmp->type == ICMP_DEST_UNREACH || icmp->type == ICMP_TIME_EXCEEDED ||
		icmp->type == ICMP_PARAMETER_PROBLEM);
}

/* An error, and what it embeds. */
struct quote {
	struct icmp_header *icmp;
	struct iphdr *ip;
	struct tcphdr *tcp;  /* the first 8 bytes are there */
	struct flow_key key; /* T */
	__u16 tcp_len;       /* quoted bytes of TCP header and payload */
};

/* Finds what an error embeds. 0: nothing that can be told from other traffic. */
static __always_inline int parse_quote(struct xdp_md *ctx, const struct packet *p,
				       struct quote *quote)
{
	void *data_end = (void *)(long)ctx->data_end;
	__u32 outer_len = p->ip->ihl * 4, inner_len, head_len;
	struct icmp_header *icmp = (void *)p->ip + outer_len;
	struct iphdr *inner = (void *)(icmp + 1);
	struct tcphdr *tcp;

	if ((void *)(inner + 1) > data_end || (p->ip->frag_off & xr_htons(IP_MORE_FRAGMENTS)))
		return 0;
	inner_len = inner->ihl * 4;
	head_len = outer_len + sizeof(*icmp) + inner_len;
	if (inner->version != 4 || inner_len < sizeof(*inner) || inner->protocol != IPPROTO_TCP ||
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
	quote->key.proto = IPPROTO_TCP;
	quote->key.kind = XR_KIND_NONE;
	quote->key.pad = 0;
	quote->tcp_len = p->ip_len - head_len;
	return 1;
}

/* R, and the way of its packets. */
struct route_back {
	__be32 saddr;
	__be32 daddr;
	__be16 sport;
	__be16 dport;
	__u32 ifindex;    /* 0: no path */
	__u32 capability; /* of the ingress that the kernel's hand-off needs; 0: XDP sends */
	__u8 dmac[6];
	__u8 smac[6];
};

static __always_inline void route_by_backend(struct route_back *to, __u32 id)
{
	struct backend *backend = backends_lookup(id);

	if (!backend)
		return;
	to->ifindex = backend->ifindex;
	to->capability = handoff_to_backend(backend);
	mac_copy(to->dmac, backend->dmac);
	mac_copy(to->smac, backend->smac);
}

static __always_inline void route_by_client(struct route_back *to, __u32 ifindex, const __u8 *dmac,
					    const __u8 *smac)
{
	to->ifindex = ifindex;
	to->capability = handoff_to_client(ifindex);
	mac_copy(to->dmac, dmac);
	mac_copy(to->smac, smac);
}

/* Finds whose packets answer the embedded one, and where they go. 0: nobody's. */
static __always_inline int find_route_back(const struct flow_key *quoted, struct route_back *to)
{
	struct flow_key key = {
		.saddr = quoted->daddr,
		.daddr = quoted->saddr,
		.sport = quoted->dport,
		.dport = quoted->sport,
		.proto = IPPROTO_TCP,
		.kind = XR_KIND_NONE,
	};
	struct pending_flow *pending;
	struct flow_entry *flow = flow_table_lookup(&key);

	if (flow) {
		to->saddr = flow->new_saddr;
		to->daddr = flow->new_daddr;
		to->sport = flow->new_sport;
		to->dport = flow->new_dport;
		if (flow->direction == XR_DIR_FORWARD) {
			route_by_backend(to, flow->backend);
			return 1;
		}
		route_by_client(to, flow->ifindex, flow->dmac, flow->smac);
		return 1;
	}
	key.kind = XR_KIND_REPLY;
	pending = pending_flows_lookup(&key);
	if (pending) {
		route_by_client(to, pending->ifindex, pending->dmac, pending->smac);
	} else {
		key.kind = XR_KIND_FORWARD;
		pending = pending_flows_lookup(&key);
		if (!pending || pending->backend == XR_NO_BACKEND)
			return 0;
		route_by_backend(to, pending->backend);
	}
	to->saddr = pending->new_saddr;
	to->daddr = pending->new_daddr;
	to->sport = pending->new_sport;
	to->dport = pending->new_dport;
	return 1;
}

/* The embedded packet as its sender sent it, and the error addressed to that sender. */
static __always_inline void rewrite_error(struct xdp_md *ctx, struct packet *p,
					  const struct quote *quote, const struct route_back *to)
{
	struct flow_key outer = {.saddr = p->ip->saddr, .daddr = p->ip->daddr};
	/* A hop on the way speaks for itself; the one it was sent to has another address there. */
	__be32 saddr = outer.saddr == quote->key.daddr ? to->saddr : outer.saddr;
	void *data_end = (void *)(long)ctx->data_end;
	struct tcphdr *tcp = quote->tcp;
	__u16 l3, l4, old;
	__u32 sum;

	l3 = csum_delta_l3(&quote->key, to->daddr, to->saddr);
	l4 = csum_delta_l4(&quote->key, l3, to->dport, to->sport);
	sum = l4; /* what changes in the message: addresses and ports, and both sums */
	quote->ip->saddr = to->daddr;
	quote->ip->daddr = to->saddr;
	old = quote->ip->check;
	quote->ip->check = csum_apply(old, l3);
	sum += (__u16)~old + quote->ip->check;
	tcp->source = to->dport;
	tcp->dest = to->sport;
	if (quote->tcp_len >= QUOTE_TO_CHECK && (void *)tcp + QUOTE_TO_CHECK <= data_end) {
		old = tcp->check;
		tcp->check = csum_apply(old, l4);
		sum += (__u16)~old + tcp->check;
	}
	quote->icmp->checksum = csum_apply(quote->icmp->checksum, sum);

	p->ip->check = csum_apply(p->ip->check, csum_delta_l3(&outer, saddr, to->daddr));
	p->ip->saddr = saddr;
	p->ip->daddr = to->daddr;
}

/* An error about a flow's packet goes to its sender, any other one passes untouched. */
static __always_inline int translate_error(struct xdp_md *ctx, struct packet *p,
					   const struct quote *quote)
{
	struct interface *ingress;
	struct route_back to = {};

	if (p->ip->daddr != quote->key.saddr || !find_route_back(&quote->key, &to))
		return pass(XR_COUNT_pass_not_tcp);
	ingress = interfaces_lookup(ctx->ingress_ifindex);
	if (to.capability ? !ingress || !(ingress->flags & to.capability) ||
				    p->l3_off != sizeof(struct ethhdr)
			  : !to.ifindex)
		return drop(XR_COUNT_no_path);
	if (p->ip->ttl <= 1) /* an error is never answered by another one (RFC 1122, 3.2.2) */
		return drop(XR_COUNT_ttl_exceeded);
	rewrite_error(ctx, p, quote, &to);
	count(XR_COUNT_icmp_translated);
	if (to.capability && ingress) {
		mac_copy(p->eth->h_dest, ingress->mac);
		return pass(XR_COUNT_handed_to_kernel);
	}
	p->ip->ttl--;
	p->ip->check = csum_apply(p->ip->check, CSUM_DELTA_TTL);
	mac_copy(p->eth->h_dest, to.dmac);
	mac_copy(p->eth->h_source, to.smac);
	return bpf_redirect(to.ifindex, 0);
}

#endif
