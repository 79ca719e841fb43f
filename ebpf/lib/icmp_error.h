/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* ICMP errors of our own: the packet is turned into the error that answers it. */
#ifndef XR_ICMP_ERROR_H
#define XR_ICMP_ERROR_H

#include "budget.h"
#include "icmp.h"
#include "send.h"

/* Answers the packet, if it may be answered and there is a token for that. */
static __always_inline int answer_within_budget(struct xdp_md *ctx, struct packet *p,
						const struct icmp_error_state *error)
{
	struct token_bucket *bucket = tokens_lookup(XR_TOKENS_ICMP);
	struct control *control = control_lookup();
	struct interface *interface;

	if (!control || !bucket)
		return XDP_DROP;
	if (!is_one_host(p->ip->saddr)) /* else the reason is counted already */
		return is_too_big_error(error) ? drop(XR_COUNT_too_big_dropped) : XDP_DROP;
	interface = interfaces_lookup(ctx->ingress_ifindex);
	if (!interface || !has_addr(interface))
		return drop(XR_COUNT_icmp_no_source);
	if (!token_ready(bucket, control->icmp_interval_ns, control->icmp_burst_ns,
			 clock_precise()))
		return drop(XR_COUNT_icmp_over_budget);
	token_spend(bucket, control->icmp_interval_ns);
	return send_error(ctx, p, error, interface_addr(interface));
}

#endif
