/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* stage_probe and stage_icmp: what comes back for a probe, and errors about flows. */
#ifndef XR_PROBE_ANSWER_H
#define XR_PROBE_ANSWER_H

#include "icmp.h"
#include "probe_kinds.h"
#include "tunnel_mtu.h"

static __always_inline int probe_stage(struct xdp_md *ctx)
{
	struct control *control = control_lookup();
	struct packet p = {}; /* as in stage_decide */
	__u32 seq;
	int parsed;

	parsed = parse_packet(ctx, &p);
	if (!control || !has_ports(parsed))
		return XDP_PASS;
	if (parsed == PARSE_UDP)
		return probe_datagram(ctx, &p, control);
	seq = p.ack - 1;
	if (!(p.flags & TCP_ACK) || !(p.flags & (TCP_SYN | TCP_RST)) ||
	    !is_probe_seq(control, p.key.saddr, p.key.sport, p.key.dport, p.key.daddr, seq))
		return pass(XR_COUNT_probe_unverified);
	if (p.flags & TCP_RST) {
		probe_reply_submit(ctx, &p, XR_PROBE_RST, seq);
		return drop(XR_COUNT_probe_rst);
	}
	probe_reply_submit(ctx, &p, XR_PROBE_SYNACK, seq);
	if (takes_no_frames(ctx->ingress_ifindex)) /* the host's own stack answers it by RST */
		return pass(XR_COUNT_probe_synack);
	return answer_rst(ctx, &p, XR_COUNT_probe_synack);
}

/* Is it about one of our SYNs? They are sent without options. */
static __always_inline int is_about_probe(const struct quote *quote, const struct control *control)
{
	const flow_key_t *key = &quote->key;

	return is_plain_ip(quote->ip) && key->proto == IPPROTO_TCP &&
	       is_probe_port(control, key->sport) &&
	       sends_any_probes(key->daddr, key->dport, IPPROTO_TCP, key->saddr) &&
	       is_probe_seq(control, key->daddr, key->dport, key->sport, key->saddr,
			    xr_ntohl(quote->tcp->seq));
}

/*
 * Destination unreachable about a probe: that candidate loses at once, and the packet
 * passes. An error about a flow's packet goes to the side that sent it.
 */
static __always_inline int icmp_stage(struct xdp_md *ctx)
{
	struct control *control;
	struct quote quote = {};
	struct packet p;
	__u32 number = 0;

	if (parse_packet(ctx, &p) != PARSE_ICMP)
		return XDP_PASS;
	control = control_lookup();
	if (!control || !is_icmp_error(ctx, &p))
		return pass(XR_COUNT_pass_other_protocol);
	if (is_unreachable(p.l4) && is_about_message(ctx, &p, control, &number)) {
		probe_reply_submit(ctx, &p, XR_PROBE_UNREACHABLE, number);
		return pass(XR_COUNT_probe_unreachable);
	}
	if (!parse_quote(ctx, &p, &quote))
		return tunnel_error(ctx, &p) ? drop(XR_COUNT_tunnel_too_big)
					     : pass(XR_COUNT_pass_other_protocol);
	if (!is_unreachable(quote.icmp) || !is_about_probe(&quote, control))
		return translate_error(ctx, &p, &quote);
	answer_key(&p, quote.key.daddr, quote.key.dport, quote.key.proto, quote.key.saddr,
		   quote.key.sport);
	probe_reply_submit(ctx, &p, XR_PROBE_UNREACHABLE, xr_ntohl(quote.tcp->seq));
	return pass(XR_COUNT_probe_unreachable);
}

#endif
