/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Flows whose replies do not come through here (dsr, ipip): one entry in flow_table, followed
 * by what the client sends alone. What the backend would say about a segment is not known, so
 * its own numbers have to do.
 */
#ifndef XR_ONE_SIDED_H
#define XR_ONE_SIDED_H

#include "clock.h"
#include "load.h"
#include "packet.h"
#include "stats.h"

/*
 * A segment moves what is followed if it ends no farther than this from what was seen: about as
 * much as a sender has under way, and 1 guess in 512 from outside.
 */
#define ONE_SIDED_NEAR (1U << 22)

static __always_inline int is_one_sided(const flow_entry_t *flow)
{
	return flow->flags & XR_FLOW_ONE_SIDED;
}

/* The client has sent its FIN. The backend may go on for long, and would be cut off by us. */
static __always_inline int is_half_closed(const flow_entry_t *flow)
{
	return (flow->flags & (XR_FLOW_ONE_SIDED | XR_FLOW_RST)) == XR_FLOW_ONE_SIDED;
}

/* Does the segment come first after a SYN of this number? Who sends it has seen a SYN-ACK. */
static __always_inline int continues_syn(const struct packet *p, __u32 isn, __u16 syn_data)
{
	return (p->flags & (TCP_ACK | TCP_RST | TCP_SYN)) == TCP_ACK &&
	       (p->seq == isn + 1 || p->seq == isn + 1 + syn_data);
}

/*
 * The client closed, and uses its port again: its SYN went to the bound backend, which has
 * taken it, or the client would not go on like this.
 */
static __always_inline void one_sided_restart(const struct packet *p, flow_entry_t *flow)
{
	__u64 now_ns = clock_precise();

	flow->isn = flow->later_syn;
	flow->seq_next = p->seq;
	flow->ack = p->ack;
	flow->state = XR_TCP_ESTABLISHED;
	flow->flags &= ~(XR_FLOW_FIN | XR_FLOW_RST);
	flow->packets = 0;
	flow->bytes = 0;
	flow->seen_ns = now_ns;
	flow->established_us = 0;
	flow->latency_ns = 0;
	flow->fppl_ns = 0;
	flow->first_data_us = 0;
	flow->later_syn = 0;
	flow_returns(flow);
	count(XR_COUNT_flow_restarted);
}

/* Only a RST at the very number that comes next is believed (RFC 5961, 3.2). */
static __always_inline void one_sided_reset(const struct packet *p, flow_entry_t *flow)
{
	if (p->seq != flow->seq_next) {
		count(XR_COUNT_rst_inexact);
		return;
	}
	flow->flags |= XR_FLOW_RST;
	flow->state = XR_TCP_CLOSING;
	flow_leaves(flow);
}

/* Follows the client's numbers. FIN and RST are hints: new data takes them back. */
static __always_inline void one_sided_track(const struct packet *p, flow_entry_t *flow)
{
	__u32 end = p->seq + segment_length(p);
	__u32 advance;

	if (p->flags & TCP_SYN)
		return;
	if (p->flags & TCP_RST) {
		one_sided_reset(p, flow);
		return;
	}
	if (flow->state == XR_TCP_CLOSING && flow->later_syn &&
	    continues_syn(p, flow->later_syn, 0))
		one_sided_restart(p, flow);
	advance = end - flow->seq_next;
	if (advance + ONE_SIDED_NEAR > 2 * ONE_SIDED_NEAR) {
		if (p->flags & TCP_FIN)
			count(XR_COUNT_fin_outside_window);
		return;
	}
	if (p->flags & TCP_FIN) {
		flow->flags |= XR_FLOW_FIN;
		flow->state = XR_TCP_CLOSING;
		flow_leaves(flow);
	} else if (flow->state == XR_TCP_CLOSING && p->payload && (__s32)advance > 0) {
		flow->flags &= ~(XR_FLOW_FIN | XR_FLOW_RST);
		flow->state = XR_TCP_ESTABLISHED;
		flow_returns(flow);
		count(XR_COUNT_closing_revoked);
	}
	if ((__s32)advance > 0)
		flow->seq_next = end;
	if ((p->flags & TCP_ACK) && p->ack - flow->ack < (1U << 30)) {
		flow->ack = p->ack;
		flow->window = (__u32)p->window << (flow->wscale & 15);
	}
	if (p->payload && !flow->first_data_us)
		flow->first_data_us = elapsed_us(flow->seen_ns, clock_precise());
}

#endif
