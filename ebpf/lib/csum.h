/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* One's complement sums (RFC 1071) and their incremental update (RFC 1624, eqn. 3). */
#ifndef XR_CSUM_H
#define XR_CSUM_H

#include "packet.h"

static __always_inline __u16 csum_fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (__u16)sum;
}

static __always_inline __u16 csum_fold64(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffffffff) + (sum >> 32);
	return csum_fold((__u32)((sum & 0xffff) + (sum >> 16)));
}

/* Adds a word of 32 bits as two of 16; the sum does not care for byte order. */
static __always_inline __u32 csum_add32(__u32 sum, __u32 word)
{
	return sum + (word & 0xffff) + (word >> 16);
}

static __always_inline __u16 csum_apply(__u16 check, __u32 delta)
{
	return (__u16)~csum_fold((__u32)(__u16)~check + delta);
}

/* What changing the ports adds to a sum, on top of the addresses' delta (pseudo header). */
static __always_inline __u16 csum_delta_l4(const flow_key_t *key, __u16 l3_delta, __be16 sport,
					   __be16 dport)
{
	__u32 sum = l3_delta;

	sum += (__u16)~key->sport;
	sum += (__u16)~key->dport;
	sum += sport;
	sum += dport;
	return csum_fold(sum);
}

#endif
