/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The frames that the benchmarks send: Ethernet, IP of either family, TCP without options or
 * UDP with as many bytes. */
#ifndef XR_BENCH_HEADERS_H
#define XR_BENCH_HEADERS_H

#include <linux/tcp.h>
#include <linux/udp.h>

#include "lib/family.h"

struct headers {
	struct ethhdr eth;
	__u8 ip[sizeof(ip_header_t)]; /* as bytes: the compiler would align them */
	__u8 tcp[sizeof(struct tcphdr)];
};

static __always_inline ip_header_t *ip_of(struct headers *headers)
{
	return (void *)headers->ip;
}

static __always_inline struct tcphdr *tcp_of(struct headers *headers)
{
	return (void *)headers->tcp;
}

static __always_inline struct udphdr *udp_of(struct headers *headers)
{
	return (void *)headers->tcp;
}

static __always_inline struct headers *headers_of(struct xdp_md *ctx)
{
	struct headers *headers = (void *)(long)ctx->data;

	return (void *)(headers + 1) > (void *)(long)ctx->data_end ? 0 : headers;
}

#endif
