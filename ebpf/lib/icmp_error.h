/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ICMP errors of our own: the packet is turned into the error that answers it. */
#ifndef XR_ICMP_ERROR_H
#define XR_ICMP_ERROR_H

#include "budget.h"
#include "send.h"

/* As much of the packet as a datagram of 576 bytes holds (RFC 1812, 4.3.2.3). */
#define ERROR_QUOTE_MAX (576 - ERROR_HEAD)
#define ERROR_HEAD (sizeof(struct iphdr) + sizeof(struct icmp_header))
#define ERROR_TOS 0xc0 /* internetwork control (RFC 1812, 4.3.2.5) */

/* Multicast, broadcast, loopback or "this network": nobody who may be answered. */
static __always_inline int is_one_host(__be32 addr)
{
	__u8 first = xr_ntohl(addr) >> 24;

	return first != 0 && first != 127 && first < 224;
}

static __always_inline __u16 csum_fold64(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	return csum_fold((__u32)((sum & 0xffff) + (sum >> 16)));
}

/*
 * Sends the error that scratch->icmp_error names back to where the packet came from, from
 * the address of the interface that it came in by. Quoted is what was received, in whole
 * words: its headers always are.
 */
static __always_inline int send_error(struct xdp_md *ctx, const struct packet *p,
				      const struct icmp_error_state *error, __be32 source)
{
	__u32 quoted = p->ip_len < ERROR_QUOTE_MAX ? p->ip_len & ~3U : ERROR_QUOTE_MAX;
	__u32 l3_off = p->l3_off, length = p->frame_len;
	__be32 target = p->ip->saddr;
	struct icmp_header *icmp;
	void *data, *data_end;
	struct ethhdr head;
	__u32 *word;
	__be32 tags[XR_MAX_VLAN_TAGS];
	struct iphdr *ip;
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
	count(error->type == ICMP_TIME_EXCEEDED ? XR_COUNT_icmp_time_exceeded
						: XR_COUNT_icmp_too_big);
	return bounce(ctx);
}

/* Answers the packet, if it may be answered and there is a token for that. */
static __always_inline int answer_within_budget(struct xdp_md *ctx, struct packet *p,
						const struct icmp_error_state *error)
{
	struct token_bucket *bucket = tokens_lookup(XR_TOKENS_ICMP);
	struct control *control = control_lookup();
	struct interface *interface;

	if (!control || !bucket)
		return XDP_DROP;
	if (!is_one_host(p->ip->saddr)) /* an expired TTL is counted already */
		return error->type == ICMP_TIME_EXCEEDED ? XDP_DROP
							 : drop(XR_COUNT_too_big_dropped);
	interface = interfaces_lookup(ctx->ingress_ifindex);
	if (!interface || !interface->addr)
		return drop(XR_COUNT_icmp_no_source);
	if (!token_ready(bucket, control->icmp_interval_ns, control->icmp_burst_ns,
			 clock_precise()))
		return drop(XR_COUNT_icmp_over_budget);
	token_spend(bucket, control->icmp_interval_ns);
	return send_error(ctx, p, error, interface->addr);
}

#endif
