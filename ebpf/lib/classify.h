/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Whose packet is it? Everything that no established flow owns. */
#ifndef XR_CLASSIFY_H
#define XR_CLASSIFY_H

#include "echo.h"
#include "events.h"
#include "icmp.h"
#include "probe_kinds.h"
#include "syn.h"

/* Is the frame addressed to this interface, or to a virtual MAC of ours? */
static __always_inline int is_our_mac(struct xdp_md *ctx, const struct ethhdr *eth)
{
	struct interface *interface = interfaces_lookup(ctx->ingress_ifindex);

	if (!interface)
		return 0;
	if (mac_equal(eth->h_dest, interface->mac))
		return 1;
	return (interface->flags & XR_IF_VIRTUAL_MAC) &&
	       mac_equal(eth->h_dest, interface->virtual_mac);
}

static __always_inline int go_to_service(struct xdp_md *ctx, const struct packet *p)
{
	if ((p->flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN)
		return go_to_stage(ctx, XR_STAGE_SYN);
	return go_to_stage(ctx, XR_STAGE_SEGMENT);
}

/* A packet for us that no established flow owns. */
static __always_inline int classify_new(struct xdp_md *ctx, const struct packet *p)
{
	struct endpoint_key key;
	struct service *service;
	struct backend_ref *ref;
	struct control *control;
	int is_client;

	service_key_of(p, &key);
	is_client = may_be_client(p->key.saddr);
	service = services_lookup(&key);
	if (is_client && unless_left_out(service))
		return go_to_service(ctx, p);
	if (is_client && is_for_gateway(service))
		return pass(XR_COUNT_pass_gateway);
	control = control_lookup();
	ref = backend_of_source(p, control);
	if (control && is_probe_port(control, p->key.dport)) {
		struct backend *backend = ref ? backends_lookup(ref->backend) : 0;

		if ((backend && addr_equal(own_addr(&backend->probe_addr), p->key.daddr)) ||
		    sends_only_probes(p->key.saddr, p->key.sport, IPPROTO_TCP, XR_ENDPOINT_PROBE,
				      p->key.daddr))
			return go_to_stage(ctx, XR_STAGE_PROBE);
	}
	/* After the answers to probes and to ports of fullnat: a service of all ports would have
	 * swallowed them. */
	if (is_client && !service && has_ranges(control) && !is_to_nat_port(p, control, ref)) {
		service = entry_in_ranges(&key);
		if (unless_left_out(service))
			return go_to_service(ctx, p);
		if (is_for_gateway(service))
			return pass(XR_COUNT_pass_gateway);
	}
	if (!ref)
		return pass(XR_COUNT_pass_not_service);
	stages_call(ctx, XR_STAGE_REPLY);
	return pass(XR_COUNT_tail_call_missed); /* maybe not ours: never dropped unseen */
}

/* The table has no flow for it; one of before may have. */
static __always_inline int classify_miss(struct xdp_md *ctx, const struct packet *p)
{
	if (__builtin_expect(previous_table() != 0, 0))
		stages_call(ctx, XR_STAGE_PREVIOUS);
	if (!is_our_mac(ctx, p->eth))
		return pass(XR_COUNT_pass_other_mac);
	return classify_new(ctx, p);
}

static __always_inline int not_tcp(struct xdp_md *ctx, const struct packet *p, int result)
{
	switch (result) {
#if XR_FAMILY == 4
	case PARSE_OTHER_FAMILY:
		any_stage_call(ctx, XR_STAGE_IPV6);
		return pass(XR_COUNT_pass_no_ipv6);
#endif
	case PARSE_UDP:
		stages_call(ctx, XR_STAGE_UDP);
		return pass(XR_COUNT_tail_call_missed); /* maybe not ours: never dropped unseen */
	case PARSE_ICMP:
		if ((is_echo_reply(ctx, p) || is_echo_request(ctx, p)) && is_our_mac(ctx, p->eth)) {
			stages_call(ctx, XR_STAGE_ECHO);
			return pass(XR_COUNT_tail_call_missed);
		}
		if (!is_icmp_error(ctx, p) || !is_our_mac(ctx, p->eth))
			return pass(XR_COUNT_pass_other_protocol);
		stages_call(ctx, XR_STAGE_ICMP);
		count(XR_COUNT_tail_call_missed);
		return XDP_PASS;
	case PARSE_FRAGMENT_FIRST:
	case PARSE_FRAGMENT_LATER:
		stages_call(ctx, XR_STAGE_FRAGMENT);
		return pass(XR_COUNT_tail_call_missed);
	case PARSE_NOT_IP:
		return pass(XR_COUNT_pass_not_ip);
	case PARSE_OTHER_PROTOCOL:
		return pass(XR_COUNT_pass_other_protocol);
	case PARSE_EXTENSIONS:
		return pass(XR_COUNT_extension_headers);
	default:
		return pass(XR_COUNT_pass_malformed);
	}
}

#endif
