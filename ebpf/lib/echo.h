/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * stage_echo: replies to probes (lib/probe_kinds.h), and requests to the address of a service that
 * wants them answered. Such an address has an entry of its own in `services`, of kind
 * XR_ENDPOINT_ECHO: a ping names no port.
 */
#ifndef XR_ECHO_H
#define XR_ECHO_H

#include "budget.h"
#include "probe_kinds.h"

/* Is it an echo request, and is there anybody who wants one answered? */
static __always_inline int is_echo_request(struct xdp_md *ctx, const struct packet *p)
{
	const struct icmp_header *icmp = p->l4;
	const struct control *control;

	if ((void *)(icmp + 1) > (void *)(long)ctx->data_end || p->l4_len < sizeof(*icmp) ||
	    icmp->type != ICMP_ECHO_REQUEST || icmp->code)
		return 0;
	control = control_lookup();
	return control && (control->flags & XR_CONTROL_ECHO);
}

/* The frame becomes its own answer: nothing is longer or shorter, and the sums change by little. */
static __always_inline int echo_request(struct xdp_md *ctx, struct packet *p)
{
	struct token_bucket *bucket = tokens_lookup(XR_TOKENS_ECHO);
	struct control *control = control_lookup();
	struct endpoint_key key;
	struct icmp_header *icmp;
	__u8 mac[ETH_ALEN];

	icmp = p->l4;
	if (!control || !bucket || (void *)(icmp + 1) > (void *)(long)ctx->data_end)
		return pass(XR_COUNT_pass_other_protocol);
	key.addr = shared_addr(p->ip->daddr);
	key.port = 0;
	key.proto = IP_ICMP;
	key.kind = XR_ENDPOINT_ECHO;
	/* options ask for more than an answer, and fragments are put together by the host */
	if (!is_plain_ip(p->ip) || !is_one_host(p->ip->saddr) || !services_lookup(&key))
		return pass(XR_COUNT_pass_other_protocol);
	if (!token_ready(bucket, control->icmp_interval_ns, control->icmp_burst_ns,
			 clock_precise()))
		return drop(XR_COUNT_icmp_over_budget);
	token_spend(bucket, control->icmp_interval_ns);
	mac_copy(mac, p->eth->h_dest);
	mac_copy(p->eth->h_dest, p->eth->h_source);
	mac_copy(p->eth->h_source, mac);
	ip_turn_round(p->ip);
	icmp->type = ICMP_ECHO_REPLY; /* the low byte of the first word, as it lies */
	icmp->checksum = csum_apply(icmp->checksum, (__u16)~ICMP_ECHO_REQUEST + ICMP_ECHO_REPLY);
	count(XR_COUNT_echo_answered);
	return bounce(ctx);
}

static __always_inline int echo_stage(struct xdp_md *ctx)
{
	struct packet p;

	if (parse_packet(ctx, &p) != PARSE_ICMP)
		return XDP_PASS;
	return is_echo_request(ctx, &p) ? echo_request(ctx, &p) : echo_reply(ctx, &p);
}

#endif
