/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The frames that the benchmarks send: Ethernet, IPv4 and TCP without options. */
#ifndef XR_BENCH_HEADERS_H
#define XR_BENCH_HEADERS_H

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/tcp.h>

struct headers {
	struct ethhdr eth;
	__u8 ip[sizeof(struct iphdr)]; /* as bytes: the compiler would align them */
	__u8 tcp[sizeof(struct tcphdr)];
};

static __always_inline struct iphdr *ip_of(struct headers *headers)
{
	return (void *)headers->ip;
}

static __always_inline struct tcphdr *tcp_of(struct headers *headers)
{
	return (void *)headers->tcp;
}

static __always_inline struct headers *headers_of(struct xdp_md *ctx)
{
	struct headers *headers = (void *)(long)ctx->data;

	return (void *)(headers + 1) > (void *)(long)ctx->data_end ? 0 : headers;
}

#endif
