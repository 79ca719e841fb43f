/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Verdicts and the one way out: what happened is counted where the packet leaves. */
#ifndef XR_STATS_H
#define XR_STATS_H

#include "maps.h"

static __always_inline void count(__u32 counter)
{
	__u64 *value = counters_lookup(counter);

	if (value)
		(*value)++; /* per CPU */
}

static __always_inline int pass(__u32 counter)
{
	count(counter);
	return XDP_PASS;
}

static __always_inline int drop(__u32 counter)
{
	count(counter);
	return XDP_DROP;
}

#endif
