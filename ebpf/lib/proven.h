/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * A flow whose handshake is proven and that found no room in flow_table. Its pending entries
 * follow just as much of it as it takes to move it there later, and to see its end.
 */
#ifndef XR_PROVEN_H
#define XR_PROVEN_H

#include "binding.h"
#include "pressure.h"

static __always_inline __u8 effective_wscale(const pending_flow_t *of, const pending_flow_t *other)
{
	/* RFC 7323, 2.2: scaling is on only if both sides offered it */
	if (of->wscale == XR_NO_WSCALE || other->wscale == XR_NO_WSCALE)
		return 0;
	return of->wscale;
}

/* A REPLY that lost its FORWARD may serve a later flow: both must say so. */
static __always_inline int is_proven(const pending_flow_t *forward, const pending_flow_t *reply)
{
	return forward->flags & reply->flags & XR_PENDING_PROVEN;
}

static __always_inline void proven_begin(const struct packet *p, pending_flow_t *forward,
					 pending_flow_t *reply)
{
	forward->flags |= XR_PENDING_PROVEN;
	reply->flags |= XR_PENDING_PROVEN;
	reply->seq = reply->isn + 1;
	reply->ack = p->seq;
}

/*
 * The backend knows an orphan's connection, so it is as good as proven, but for numbers of its
 * handshake: it has no place to move to, and what the backend says next finds its way.
 */
static __always_inline void orphan_begin(const struct packet *p, pending_flow_t *forward,
					 pending_flow_t *reply)
{
	forward->flags |= XR_PENDING_PROVEN;
	reply->flags |= XR_PENDING_PROVEN;
	reply->seq = p->seq;
	reply->ack = p->ack;
	reply->window = p->window;
}

/* FIN both ways, or a RST: an entry like that of any flow that came to nothing. */
static __always_inline void proven_end(pending_flow_t *forward, pending_flow_t *reply)
{
	forward->flags = (forward->flags & ~XR_PENDING_PROVEN) | XR_PENDING_CLOSED;
	reply->flags &= ~XR_PENDING_PROVEN;
}

/* Is the client's segment one that its backend would take? REPLY has what that one has. */
static __always_inline int proven_in_window(const struct packet *p, const pending_flow_t *reply)
{
	return (__s32)(p->seq + segment_length(p) - reply->ack) >= 0 &&
	       (__s32)(p->seq - reply->ack) <= (__s32)reply->window;
}

/*
 * May the client's segment move the flow into flow_table? What is followed from then on
 * begins with its numbers, so they must fit what the backend sent: one exactly, the other in
 * its window. Else a guess from outside could choose what a RST or FIN is checked against.
 */
static __always_inline int proven_speaks(const struct packet *p, const pending_flow_t *reply,
					 __u64 now_ns)
{
	if (!(reply->flags & XR_PENDING_SYNACK) ||
	    (p->flags & (TCP_ACK | TCP_RST | TCP_SYN)) != TCP_ACK || !proven_in_window(p, reply))
		return 0;
	if (reply->reason == XR_REASON_STATELESS && p->ack != reply->seq)
		return 0; /* its client has proven nothing yet: it must know the backend's number */
	if (reply->seq - p->ack >= TCP_WINDOW_MAX || (p->seq != reply->ack && p->ack != reply->seq))
		return 0;
	return older_than(table_full_since(), TABLE_RETRY_NS, now_ns);
}

/* The client's segment stays without a place in the table: does it end the flow? */
static __always_inline void proven_from_client(const struct packet *p, pending_flow_t *forward,
					       pending_flow_t *reply)
{
	if (p->flags & TCP_RST) {
		if (p->seq == reply->ack) /* exactly what the backend waits for, RFC 5961 */
			proven_end(forward, reply);
	} else if ((p->flags & TCP_FIN) && proven_in_window(p, reply)) {
		forward->flags |= XR_PENDING_FIN;
		if (reply->flags & XR_PENDING_FIN)
			proven_end(forward, reply);
	}
}

/* A segment of the backend; one that came by another way than its own says nothing. */
static __always_inline void proven_from_backend(struct xdp_md *ctx, const struct packet *p,
						pending_flow_t *forward, pending_flow_t *reply)
{
	struct backend *backend = backends_lookup(reply->backend);
	__u32 end = p->seq + segment_length(p);

	if (!backend || backend->ifindex != ctx->ingress_ifindex || (p->flags & TCP_SYN))
		return;
	if (p->flags & TCP_RST) {
		if (p->seq == reply->seq)
			proven_end(forward, reply);
		return;
	}
	if (end - reply->seq < TCP_WINDOW_MAX)
		reply->seq = end;
	if ((p->flags & TCP_ACK) && p->ack - reply->ack < TCP_WINDOW_MAX) {
		reply->ack = p->ack;
		reply->window = (__u32)p->window << (effective_wscale(reply, forward) & 15);
	}
	if (p->flags & TCP_FIN) {
		reply->flags |= XR_PENDING_FIN;
		if (forward->flags & XR_PENDING_FIN)
			proven_end(forward, reply);
	}
}

#endif
