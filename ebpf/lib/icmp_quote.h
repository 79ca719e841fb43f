/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What ICMP errors of both families have: the packet that they embed, and whose it was. */
#ifndef XR_ICMP_QUOTE_H
#define XR_ICMP_QUOTE_H

#include "parse.h"

#define QUOTE_MIN 8       /* ports, and TCP's sequence number or UDP's checksum (RFC 792) */
#define QUOTE_TO_CHECK 18 /* so much reaches beyond TCP's checksum */

/* Is the embedded packet of a protocol that flows are of? */
static __always_inline int quotes_ports(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP;
}

static __always_inline int is_too_big_error(const struct icmp_error_state *error)
{
	return error->type == ICMP_TOO_BIG && error->code == ICMP_TOO_BIG_CODE;
}

/* What counts an error that is sent. */
static __always_inline __u32 counter_of_error(const struct icmp_error_state *error)
{
	if (error->type == ICMP_TIME_EXCEEDED)
		return XR_COUNT_icmp_time_exceeded;
	return is_too_big_error(error) ? XR_COUNT_icmp_too_big : XR_COUNT_unreachable_sent;
}

/* An error, and what it embeds. */
struct quote {
	struct icmp_header *icmp;
	ip_header_t *ip;
	struct tcphdr *tcp; /* the first 8 bytes are there */
	flow_key_t key;     /* T */
	__u16 l4_len;       /* quoted bytes of TCP header and payload */
};

/* R, and the way of its packets. */
struct route_back {
	addr_t saddr;
	addr_t daddr;
	__be16 sport;
	__be16 dport;
	__u32 ifindex; /* 0: no path */
	__u32 backend; /* whose stage_send sends it, if `stage` */
	__u32 about; /* the backend that the embedded packet went to; XR_NO_BACKEND: to a client */
	__u32 stage;
	__u16 vlan;       /* towards a client: XR_VLAN_ */
	__u32 capability; /* of the ingress that the kernel's hand-off needs; 0: XDP sends */
	__u8 dmac[6];
	__u8 smac[6];
};

#endif
