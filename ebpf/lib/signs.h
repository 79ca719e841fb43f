/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Signs of life of a backend, by what its flows show: for the daemon, which judges its health by
 * them. Slow paths alone write them. What speaks against a backend has the source prefix of the
 * flow's client beside it, and each flow says it once: one client alone proves little.
 */
#ifndef XR_SIGNS_H
#define XR_SIGNS_H

#include "clock.h"

/* A SYN that comes again sooner is no retransmit (RFC 6298, 2.1), but somebody's copy. */
#define SIGN_AGAIN_NS 200000000ULL
/* A RST that comes later than this after the first packet is no refusal. */
#define SIGN_CUT_NS 1000000000ULL

static __always_inline void sign_answered(__u32 backend)
{
	struct backend_signs *signs = backend_signs_lookup(backend);

	if (signs)
		__sync_fetch_and_add(&signs->answered, 1);
}

static __always_inline void sign_served(__u32 backend)
{
	struct backend_signs *signs = backend_signs_lookup(backend);

	if (signs)
		__sync_fetch_and_add(&signs->served, 1);
}

/* What speaks against a backend, as it lies in backend_signs. */
enum sign {
	SIGN_UNANSWERED,
	SIGN_REFUSED,
	SIGN_CUT,
	SIGN_UNREACHABLE,
	SIGNS,
};

/* `what` speaks against the backend, says the flow of a client. */
static __always_inline void sign_bad(__u32 backend, __u64 what, addr_t client)
{
	struct backend_signs *signs = backend_signs_lookup(backend);
	struct ip_addr prefix = prefix_of(client);
	__u32 source = addr_fold(own_addr(&prefix));

	asm volatile("" : "+r"(what)); /* or its bound is dropped, see hash_pick() */
	if (!signs || what >= SIGNS)
		return;
	__sync_fetch_and_add(&signs->unanswered + what, 1);
	if (signs->source != source) {
		signs->source = source;
		__sync_fetch_and_add(&signs->sources, 1);
	}
}

#endif
