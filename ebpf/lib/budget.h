/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Budgets of first-packet events: of all services, of each service, of each source prefix.
 * An event costs an interval of credit; credit grows with time up to a burst. An interval
 * of 0 is no limit.
 *
 * An event is paid for out of all of them or out of none: a service's tokens are not spent on
 * what the router as a whole has no room for, nor anybody's on what one prefix asks too much.
 */
#ifndef XR_BUDGET_H
#define XR_BUDGET_H

#include "binding.h"

/* Brings a bucket up to date; 1 when there is credit for one event. */
static __always_inline int token_ready(struct token_bucket *bucket, __u64 interval_ns,
				       __u64 burst_ns, __u64 now_ns)
{
	__u64 credit_ns = bucket->credit_ns;

	/* A bucket that CPUs share may have been looked at a moment "later" than now. */
	if (older_than(bucket->last_ns, 0, now_ns)) {
		credit_ns += now_ns - bucket->last_ns;
		bucket->last_ns = now_ns;
	}
	if (burst_ns < interval_ns) /* a small share of a small burst is one event still */
		burst_ns = interval_ns;
	if (credit_ns > burst_ns)
		credit_ns = burst_ns;
	bucket->credit_ns = credit_ns;
	return credit_ns >= interval_ns;
}

/* Two CPUs may spend a shared bucket's last token both; it is never less than empty. */
static __always_inline void token_spend(struct token_bucket *bucket, __u64 interval_ns)
{
	__u64 credit_ns = bucket->credit_ns;

	bucket->credit_ns = credit_ns > interval_ns ? credit_ns - interval_ns : 0;
}

/* What multiplies the price of an event here, in parts of XR_SHARE_ONE. */
static __always_inline __u64 cpu_scale(void)
{
	struct event_share *share = event_shares_lookup(bpf_get_smp_processor_id());

	return share && share->scale ? share->scale : XR_SHARE_ONE;
}

/* A prefix's bucket; 0: it has none, and there was no memory for one. */
static __always_inline struct token_bucket *bucket_of(struct prefix_key *key, __u64 burst_ns,
						      __u64 now_ns)
{
	struct token_bucket *bucket = prefix_tokens_lookup(key);
	struct token_bucket fresh = {};

	if (bucket)
		return bucket;
	fresh.credit_ns = burst_ns;
	fresh.last_ns = now_ns;
	prefix_tokens_insert(key, &fresh);
	return prefix_tokens_lookup(key);
}

/* That of the client's prefix for events. */
static __always_inline struct token_bucket *
prefix_bucket(const struct packet *p, const struct control *control, __u64 now_ns)
{
	struct prefix_key key = {.addr = prefix_of(p->key.saddr)};

	return bucket_of(&key, control->prefix_burst_ns, now_ns);
}

/* Takes what one event costs. XR_COUNTER_MAX, or the counter of what is in the way. */
static __always_inline __u32 event_pay(const struct packet *p, const struct service *service,
				       const struct control *control, __u64 now_ns)
{
	struct token_bucket *of_service = tokens_lookup(XR_TOKENS_SERVICE + service->id);
	__u64 scale = cpu_scale();
	__u64 service_ns = service->event_interval_ns * scale / XR_SHARE_ONE;
	__u64 all_ns = control->event_interval_ns * scale / XR_SHARE_ONE;
	struct token_bucket *of_all = tokens_lookup(XR_TOKENS_EVENTS);
	struct token_bucket *of_prefix = 0;

	if (!of_service || !of_all)
		return XR_COUNT_budget_service;
	of_all->asked++;
	if (!token_ready(of_service, service_ns, service->event_burst_ns, now_ns))
		return XR_COUNT_budget_service;
	if (!token_ready(of_all, all_ns, control->event_burst_ns, now_ns))
		return XR_COUNT_budget_global;
	if (events_waiting() > control->ring_deep)
		return XR_COUNT_ring_deep;
	if (control->prefix_interval_ns) { /* last: what is refused before makes no entry */
		of_prefix = prefix_bucket(p, control, now_ns);
		if (!of_prefix || !token_ready(of_prefix, control->prefix_interval_ns,
					       control->prefix_burst_ns, now_ns))
			return XR_COUNT_budget_prefix;
		token_spend(of_prefix, control->prefix_interval_ns);
	}
	token_spend(of_service, service_ns);
	token_spend(of_all, all_ns);
	return XR_COUNTER_MAX;
}

#endif
