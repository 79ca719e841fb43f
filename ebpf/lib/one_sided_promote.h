/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * From pending to established where no SYN-ACK comes through here. A client that goes on from
 * its ISN has most likely seen one; but an ACK can be made up as well as a SYN. So a source
 * prefix gets so many of its flows into flow_table a second, and no more. The others stay
 * pending, and ask again with every segment that comes next.
 */
#ifndef XR_ONE_SIDED_PROMOTE_H
#define XR_ONE_SIDED_PROMOTE_H

#include "admission.h"
#include "binding.h"
#include "budget.h"
#include "one_sided.h"
#include "proven.h"
#include "usage.h"

#define NOT_PROMOTED 1
#define ONE_SIDED_BURST_NS 1000000000ULL /* as many at once as in a second */

/* Is the tuple the same before and after? A backend of another method has its own address. */
static __always_inline int is_one_sided_pending(const struct packet *p,
						const pending_flow_t *forward)
{
	return forward->new_dport == p->key.dport && addr_equal(forward->new_daddr, p->key.daddr) &&
	       forward->backend != XR_NO_BACKEND;
}

/* What no prefix ends in: buckets of a prefix beside that of its events. UDP has one of its own,
 * or a flood of datagrams would keep TCP's flows out. */
#define PLACES_TCP 1
#define PLACES_UDP 2

/* Pays for a place out of the prefix's bucket of its protocol. */
static __always_inline int one_sided_pays(const struct packet *p, const struct control *control,
					  __u64 now_ns)
{
	struct prefix_key key = {.addr = prefix_of(p->key.saddr)};
	__u64 interval_ns = control->one_sided_interval_ns;
	struct token_bucket *bucket;

	if (!interval_ns)
		return 1;
	key.addr.word[3] |= xr_htonl(p->key.proto == IPPROTO_UDP ? PLACES_UDP : PLACES_TCP);
	bucket = bucket_of(&key, ONE_SIDED_BURST_NS, now_ns);
	if (!bucket || !token_ready(bucket, interval_ns, ONE_SIDED_BURST_NS, now_ns))
		return 0;
	token_spend(bucket, interval_ns);
	return 1;
}

/* FORWARD alone: there are no replies that would need an entry. */
static __always_inline long promote_one_sided(struct xdp_md *ctx, const struct packet *p,
					      const struct service *service,
					      pending_flow_t *forward, pending_flow_t *reply,
					      __u64 now_ns)
{
	struct scratch *scratch = scratch_lookup(ctx);
	flow_entry_t *entry;
	flow_key_t key;
	long result;

	if (!scratch)
		return NOT_PROMOTED;
	entry = &scratch->entry;
	__builtin_memset(entry, 0, sizeof(*entry));
	entry->last_seen_ns = now_ns;
	entry->packets = forward->packets;
	entry->bytes = forward->bytes;
	entry->seq_next = p->seq;
	entry->ack = p->ack;
	entry->state = XR_TCP_ESTABLISHED;
	entry->flags = XR_FLOW_ONE_SIDED;
	/* the backend's answer is not known: most scale if they are asked to */
	entry->wscale = forward->wscale == XR_NO_WSCALE ? 0 : forward->wscale;
	entry->window = (__u32)p->window << (entry->wscale & 15);
	entry->direction = XR_DIR_FORWARD;
	entry->open = 1;
	entry->new_saddr = p->key.saddr;
	entry->new_daddr = p->key.daddr;
	entry->new_sport = p->key.sport;
	entry->new_dport = p->key.dport;
	entry->backend = forward->backend;
	entry->ifindex = ctx->ingress_ifindex;
	mac_copy(entry->in_mac, p->eth->h_dest);
	mac_copy(entry->dmac, p->eth->h_source);
	mac_copy(entry->smac, p->eth->h_dest);
	entry->mode = forward->mode;
	entry->reason = forward->reason;
	entry->service = forward->service;
	entry->seen_ns = forward->seen_ns;
	entry->established_us = elapsed_us(forward->seen_ns, now_ns);
	entry->isn = forward->isn;
	entry->latency_ns = forward->latency_ns;
	entry->fppl_ns = forward->fppl_ns;
	flow_key_of_kind(p, XR_KIND_NONE, &key);
	result = flow_table_insert(&key, entry);
	if (result) {
		count(result == EEXIST_RESULT ? XR_COUNT_promote_conflict
					      : XR_COUNT_promote_table_full);
		return result;
	}
	count(XR_COUNT_one_sided_promoted);
	flow_opened(forward->service, forward->backend);
	affinity_note(&p->key, service, forward->backend, now_ns);
	forward->flags &= ~XR_PENDING_PROVEN; /* these entries age as usual now */
	reply->flags &= ~XR_PENDING_PROVEN;
	forward->flags |= XR_PENDING_PROMOTED;
	reply->flags |= XR_PENDING_PROMOTED;
	flow_event_submit(ctx, p, XR_EVENT_ESTABLISHED, forward, 0, now_ns);
	return 0;
}

/* Does the client go on from the SYN that its backend was sent, or from a later one? */
static __always_inline int one_sided_begins(const struct packet *p, pending_flow_t *forward,
					    __u64 now_ns)
{
	if (continues_syn(p, forward->isn, forward->syn_data))
		return 1;
	if (!forward->seq || !continues_syn(p, forward->seq, 0))
		return 0;
	forward->isn = forward->seq;
	forward->syn_data = 0;
	forward->wscale = forward->ack;
	forward->flags = 0;
	forward->seen_ns = now_ns;
	forward->seq = 0;
	count(XR_COUNT_flow_restarted);
	return 1;
}

/*
 * A client's segment of a pending flow, other than a SYN. Moves the flow into flow_table if it
 * may: 0, an error of the insert, or NOT_PROMOTED. REPLY, which no reply needs, has the number
 * that comes next.
 */
static __always_inline long one_sided_segment(struct xdp_md *ctx, const struct packet *p,
					      const struct service *service,
					      pending_flow_t *forward, pending_flow_t *reply,
					      const struct control *control, __u64 now_ns)
{
	__u32 end = p->seq + segment_length(p);
	int asked_before = is_proven(forward, reply);
	int exact;

	if (!asked_before) {
		if (!one_sided_begins(p, forward, now_ns)) {
			if ((p->flags & TCP_RST) && p->seq == forward->isn + 1)
				forward->flags |= XR_PENDING_CLOSED;
			return NOT_PROMOTED;
		}
		forward->flags |= XR_PENDING_PROVEN; /* as good as one that found no room */
		reply->flags |= XR_PENDING_PROVEN;
		reply->seq = p->seq;
	} else if (!reply->seq) { /* REPLY was evicted: followed from here on */
		reply->seq = end;
		return NOT_PROMOTED;
	}
	exact = p->seq == reply->seq;
	if (p->flags & TCP_RST) {
		if (exact)
			proven_end(forward, reply);
		return NOT_PROMOTED;
	}
	if (end - reply->seq < ONE_SIDED_NEAR)
		reply->seq = end;
	if (!exact || !(p->flags & TCP_ACK))
		return NOT_PROMOTED;
	if (asked_before && !older_than(table_full_since(), TABLE_RETRY_NS, now_ns))
		return NOT_PROMOTED;
	if (!one_sided_pays(p, control, now_ns)) {
		count(XR_COUNT_one_sided_capped);
		return NOT_PROMOTED;
	}
	return promote_one_sided(ctx, p, service, forward, reply, now_ns);
}

/*
 * A client's datagram of such a flow: the second one shows as much as there is to be seen, that
 * somebody goes on. 0: it has its place.
 */
static __always_inline long one_sided_datagram(struct xdp_md *ctx, const struct packet *p,
					       const struct service *service,
					       pending_flow_t *forward, pending_flow_t *reply,
					       const struct control *control, __u64 now_ns)
{
	if (!forward->packets)
		return NOT_PROMOTED;
	if (!one_sided_pays(p, control, now_ns)) {
		count(XR_COUNT_one_sided_capped);
		return NOT_PROMOTED;
	}
	return promote_one_sided(ctx, p, service, forward, reply, now_ns);
}

#endif
