/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What flows themselves show of a backend: how soon it answers a first packet, and how many
 * it has. A flow is one of its backend's open ones from its promotion until somebody has said
 * goodbye; `open` of its FORWARD entry says whether it is counted, and is changed by atomics
 * alone: of two CPUs that see the end, one counts it. daemon/usage_keeper.py corrects what is
 * left wrong by a daemon that was killed.
 */
#ifndef XR_LOAD_H
#define XR_LOAD_H

#include "signs.h"

/* A sample that is older says little: the next one takes its place. */
#define LOAD_FRESH_NS 1000000000ULL
/* No answer takes as long: it is that to a SYN which was sent again (RFC 6298, 2.1). */
#define LOAD_MOST_NS 1000000000ULL
/* A sample's part in the average is one of so many: 2^3. */
#define LOAD_EWMA_SHIFT 3

/*
 * `open` is the last byte of a 64-bit word whose other fields are only ever stored whole. Atomics
 * that give a result have 64 bits with bcc.
 */
#define FLOW_OPEN_BIT (1ULL << 56)
_Static_assert(__builtin_offsetof(flow_entry_t, established_us) % 8 == 0 &&
		       __builtin_offsetof(flow_entry_t, open) ==
			       __builtin_offsetof(flow_entry_t, established_us) + 7,
	       "flow_entry.open ends an aligned word");

static __always_inline __u64 *flow_open_word(flow_entry_t *forward)
{
	return (void *)&forward->established_us;
}

static __always_inline void load_opened(__u32 backend)
{
	struct backend_load *load = backend_load_lookup(backend);

	if (load)
		__sync_fetch_and_add(&load->opened, 1);
}

/* The flow is over, or goes: it is not open any more. */
static __always_inline void flow_leaves(flow_entry_t *forward)
{
	struct backend_load *load = backend_load_lookup(forward->backend);

	if ((__sync_fetch_and_and(flow_open_word(forward), ~FLOW_OPEN_BIT) & FLOW_OPEN_BIT) && load)
		__sync_fetch_and_add(&load->closed, 1);
}

/* It was not over after all. */
static __always_inline void flow_returns(flow_entry_t *forward)
{
	if (!(__sync_fetch_and_or(flow_open_word(forward), FLOW_OPEN_BIT) & FLOW_OPEN_BIT))
		load_opened(forward->backend);
}

/* The FORWARD entry of a flow, of which both are at hand. */
static __always_inline flow_entry_t *forward_of(flow_entry_t *flow, flow_entry_t *peer)
{
	return flow->direction == XR_DIR_FORWARD ? flow : peer;
}

/* How many flows a backend has. Two that come and go at one moment may be seen in part. */
static __always_inline __u64 load_open(__u32 backend, const struct backend_load *load)
{
	__u64 *aged = backend_aged_lookup(backend);
	__s64 open = load->opened - load->closed - (aged ? *aged : 0);

	return open > 0 ? open : 0;
}

/*
 * The backend has answered a first packet that left so long ago. Few branches: the verifier would
 * walk all that comes behind once for each.
 */
static __always_inline void load_answered(__u32 backend, __u64 sample_ns, __u64 now_ns)
{
	struct backend_load *load = backend_load_lookup(backend);
	__s64 fresh, ewma_ns;

	if (!load)
		return;
	load->waiting_ns = 0;
	if (sample_ns - 1 >= LOAD_MOST_NS - 1)
		return;
	/* all ones if the newest sample is old, or there is none: then the average is this one */
	fresh = load->last_ns + LOAD_FRESH_NS - now_ns;
	asm volatile("" : "+r"(fresh));
	ewma_ns = load->ewma_ns;
	load->ewma_ns =
		ewma_ns + (((__s64)sample_ns - ewma_ns) >> (LOAD_EWMA_SHIFT & ~(fresh >> 63)));
	load->last_ns = now_ns;
}

/* A first packet goes to a backend whose answers come through here. */
static __always_inline void load_asked(__u32 backend, __u64 now_ns)
{
	struct backend_load *load = backend_load_lookup(backend);

	if (load && !load->waiting_ns)
		load->waiting_ns = now_ns;
}

#endif
