/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Two clocks of one time line (CLOCK_MONOTONIC). The coarse one costs a third and is
 * late by up to one tick: good for last_seen, never for a measurement.
 */
#ifndef XR_CLOCK_H
#define XR_CLOCK_H

#include "maps.h"

#define NS_PER_US 1000ULL

static __always_inline __u64 clock_precise(void)
{
	return bpf_ktime_get_ns();
}

static __always_inline __u64 clock_coarse(void)
{
	return bpf_ktime_get_coarse_ns();
}

/* Distance in nanoseconds as an entry's 32 bits hold it: 4.3 s and more are the most. */
static __always_inline __u32 elapsed_ns(__u64 since_ns, __u64 now_ns)
{
	__u64 distance = now_ns > since_ns ? now_ns - since_ns : 0;

	return distance > 0xffffffffU ? 0xffffffffU : (__u32)distance;
}

/* The same in microseconds: 71 minutes and more. 0 when the coarse clock makes it negative. */
static __always_inline __u32 elapsed_us(__u64 since_ns, __u64 now_ns)
{
	__u64 distance = now_ns > since_ns ? (now_ns - since_ns) / NS_PER_US : 0;

	return distance > 0xffffffffU ? 0xffffffffU : (__u32)distance;
}

/* True when since_ns lies more than limit_ns before now_ns. */
static __always_inline int older_than(__u64 since_ns, __u64 limit_ns, __u64 now_ns)
{
	return (__s64)(now_ns - since_ns) > (__s64)limit_ns;
}

/* The daemon gives no sign of life: nobody will take an event. */
static __always_inline int heartbeat_is_stale(const struct control *control, __u64 now_ns)
{
	return older_than(control->heartbeat_ns, control->heartbeat_stale_ns, now_ns);
}

#endif
