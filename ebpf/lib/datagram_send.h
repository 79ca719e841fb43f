/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* A client's datagram whose flow is decided: it establishes the flow, or goes to its backend. */
#ifndef XR_DATAGRAM_SEND_H
#define XR_DATAGRAM_SEND_H

#include "pending.h"
#include "one_sided_promote.h"
#include "syn.h"
#include "udp.h"

struct datagram {
	pending_flow_t *forward; /* decided */
	pending_flow_t *reply;
	pending_flow_t *held; /* SEEN of a flow of which the daemon holds datagrams */
};

static __always_inline int not_yet(void)
{
	count(XR_COUNT_one_sided_capped);
	return 0;
}

/*
 * The backend has answered, and the client speaks again: as much of a handshake as UDP has. One
 * question with one answer never gets here, and needs no place in flow_table. 1: it has one.
 */
static __always_inline int promote_datagram(struct xdp_md *ctx, const struct packet *p,
					    const struct datagram *d, const struct service *service,
					    const struct control *control, __u64 now_ns)
{
	int one_sided = is_one_sided_pending(p, d->forward);
	long result;

	if (!one_sided && !d->reply->packets)
		return 0;
	/* Established, the flow's next one would not wait for those that are held still. */
	if (reinject_meta_of(ctx))
		return 0;
	/* A datagram has no number by which to tell its sender from somebody who guesses: one from
	 * elsewhere takes nobody's replies into the table with it. */
	if (d->reply->ifindex != ctx->ingress_ifindex ||
	    !mac_equal(p->eth->h_source, d->reply->dmac))
		return 0;
	if (is_proven(d->forward, d->reply) &&
	    !older_than(table_full_since(), TABLE_RETRY_NS, now_ns))
		return 0;
	if (one_sided)
		result = one_sided_datagram(ctx, p, service, d->forward, d->reply, control, now_ns);
	else if (one_sided_pays(p, control, now_ns)) /* question and answer may both be made up */
		result = promote(ctx, p, service, d->forward, d->reply, now_ns);
	else
		return not_yet();
	if (!result)
		return 1;
	if (result == EEXIST_RESULT) { /* another CPU's doing, or half a flow is in the way */
		flow_key_t key;

		flow_key_of_kind(p, XR_KIND_NONE, &key);
		return flow_table_lookup(&key) != 0;
	}
	if (result == E2BIG_RESULT) {
		note_table_full(now_ns);
		d->forward->flags |= XR_PENDING_PROVEN;
		d->reply->flags |= XR_PENDING_PROVEN;
	}
	return 0;
}

/* Sends a datagram of a decided flow to its backend. */
static __always_inline int send_datagram(struct xdp_md *ctx, struct packet *p, struct datagram *d,
					 const struct control *control, __u64 now_ns)
{
	pending_flow_t *forward = d->forward;
	struct rewrite to;

	if (is_long(p, control)) {
		struct backend *backend = backends_lookup(forward->backend);
		__u32 mtu = unfit_mtu_to(ctx, p, backend);

		if (mtu)
			return too_big(ctx, p, mtu);
	}
	if (older_than(forward->last_seen_ns, UDP_MOVE_NS, now_ns) ||
	    !interfaces_lookup(d->reply->ifindex))
		reply_follow_client(ctx, p, d->reply);
	forward->last_seen_ns = now_ns;
	if (!forward->packets++)
		forward->fppl_ns = elapsed_ns(forward->seen_ns, now_ns);
	forward->bytes += p->ip_len;
	rewrite_from_pending(&p->key, forward, &to);
	to.udp = 1;
	return send_to_backend(ctx, p, &to, forward->backend);
}

#endif
