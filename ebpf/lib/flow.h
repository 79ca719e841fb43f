/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Established flows: the packet path that everything else exists for. */
#ifndef XR_FLOW_H
#define XR_FLOW_H

#include "clock.h"
#include "load.h"
#include "mtu.h"
#include "one_sided.h"

/* Largest window that TCP can advertise (RFC 7323, 2.3): jumps beyond it are not tracked. */
#define TCP_WINDOW_MAX (1U << 30)

/* The other direction's key: its packets are the inverse of what this one sends. */
static __always_inline void peer_key(const flow_entry_t *flow, __u8 proto, flow_key_t *key)
{
	key->saddr = flow->new_daddr;
	key->daddr = flow->new_saddr;
	key->sport = flow->new_dport;
	key->dport = flow->new_sport;
	key->proto = proto;
	key->kind = XR_KIND_NONE;
	key->pad = 0;
}

/*
 * The other direction's entry, or 0. Two services may share a backend, and so a reply
 * tuple: an entry that sends elsewhere belongs to another flow. `former`: the table of before,
 * of a flow that is served where it is there (see previous.h); else 0.
 */
static __always_inline flow_entry_t *peer_in(void *former, const flow_key_t *key,
					     const flow_entry_t *flow)
{
	flow_entry_t *peer;
	flow_key_t other;

	if (is_one_sided(flow)) /* whoever has that key is not its other half */
		return 0;
	peer_key(flow, key->proto, &other);
	peer = flow_table_lookup(&other);
	if (!peer && former)
		peer = previous_entry(former, &other);
	if (!peer || !addr_equal(peer->new_saddr, key->daddr) || peer->new_sport != key->dport ||
	    !addr_equal(peer->new_daddr, key->saddr) || peer->new_dport != key->sport)
		return 0;
	return peer;
}

static __always_inline flow_entry_t *peer_of(const flow_key_t *key, const flow_entry_t *flow)
{
	return peer_in(0, key, flow);
}

/* How long an established flow may be silent. */
static __always_inline __u64 flow_limit(__u8 proto, const struct control *control)
{
	return proto == IPPROTO_UDP ? control->udp_idle_ns : control->flow_idle_ns;
}

/* Both directions have been silent for their time, or have said goodbye. */
static __always_inline int flow_is_over(const flow_entry_t *flow, const flow_entry_t *peer,
					__u8 proto, const struct control *control, __u64 now_ns)
{
	__u64 limit_ns = flow_limit(proto, control);
	__u64 last_seen_ns = flow->last_seen_ns;

	if (flow->state == XR_TCP_CLOSING) {
		/* What a one-sided flow's end is judged by can be made up: only silence confirms it. */
		if (!is_one_sided(flow))
			return 1;
		limit_ns = control->pending_idle_ns;
	}
	/* last_seen stands still with the heartbeat, see flow_account() */
	if (heartbeat_is_stale(control, now_ns) ||
	    !older_than(control->resumed_ns, limit_ns, now_ns))
		return 0;
	if (peer && (__s64)(peer->last_seen_ns - last_seen_ns) > 0)
		last_seen_ns = peer->last_seen_ns;
	return older_than(last_seen_ns, limit_ns, now_ns);
}

/* Does the segment overlap what its receiver is ready to take? */
static __always_inline int in_window(const struct packet *p, const flow_entry_t *receiver)
{
	__u32 end = p->seq + segment_length(p);

	return (__s32)(end - receiver->ack) >= 0 &&
	       (__s32)(p->seq - receiver->ack) <= (__s32)receiver->window;
}

/*
 * Is it the sender's own RST? Its number is the next one that the receiver waits for
 * (RFC 5961, 3.2), or the sender's own next one when it aborts with data under way.
 * Anywhere else in the window the receiver would ask back, and the flow goes on.
 */
static __always_inline int is_own_rst(const struct packet *p, const flow_entry_t *sender,
				      const flow_entry_t *receiver)
{
	return p->seq == receiver->ack || p->seq == sender->seq_next;
}

/*
 * May the segment move what is tracked? It acknowledges no more than its side has offered room
 * for. One that follows on, or was sent before, needs no more; for the rest (a gap, a window that
 * was probed, or somebody's guess) the other side is asked. That one's numbers may be as old: of
 * a flow whose first segments here were copies, neither side would ever be followed else.
 */
static __always_inline int is_credible(const struct packet *p, const flow_entry_t *flow, __u32 end,
				       void *former)
{
	int follows = p->seq == flow->seq_next || (__s32)(end - flow->seq_next) <= 0;
	__u32 newly_acked = p->ack - flow->ack;
	int acks = !(p->flags & TCP_ACK) || newly_acked <= flow->window || (__s32)newly_acked < 0;
	flow_entry_t *peer;

	if (follows && acks)
		return 1;
	peer = peer_in(former, &p->key, flow);
	return peer && in_window(p, peer) && (acks || (__s32)(p->ack - peer->seq_next) <= 0);
}

/*
 * The backend's own RST, on a flow that it has said nothing on yet, and that its client has not
 * left: it accepts, and does not serve.
 */
static __always_inline void note_cut(const flow_entry_t *flow, const flow_entry_t *peer)
{
	if (flow->direction == XR_DIR_REPLY && !flow->first_data_us &&
	    !((flow->flags | peer->flags) & (XR_FLOW_FIN | XR_FLOW_RST)) &&
	    (__s64)(flow->last_seen_ns - flow->seen_ns) < (__s64)SIGN_CUT_NS)
		sign_bad(flow->backend, SIGN_CUT, flow->new_daddr);
}

/* A FIN or RST. Returns 0 when it cannot be the sender's own and must change nothing. */
static __always_inline int flow_closing(const struct packet *p, flow_entry_t *flow, void *former)
{
	flow_entry_t *peer = peer_in(former, &p->key, flow);

	if (!peer)
		return 0;
	if (p->flags & TCP_RST) {
		if (!is_own_rst(p, flow, peer)) {
			count(XR_COUNT_rst_inexact);
			return 0;
		}
		note_cut(flow, peer);
		flow->flags |= XR_FLOW_RST;
	} else {
		if (!in_window(p, peer)) {
			count(XR_COUNT_fin_outside_window);
			return 0;
		}
		flow->flags |= XR_FLOW_FIN;
		if (!(peer->flags & XR_FLOW_FIN))
			return 1;
	}
	flow->state = XR_TCP_CLOSING;
	peer->state = XR_TCP_CLOSING;
	flow_leaves(forward_of(flow, peer));
	return 1;
}

/* New data after the end: the FIN or RST was not the peers' own. The flow lives on. */
static __always_inline void flow_revoke_closing(const struct packet *p, flow_entry_t *flow,
						void *former)
{
	flow_entry_t *peer = peer_in(former, &p->key, flow);

	if (!peer || !in_window(p, peer))
		return;
	flow->state = XR_TCP_ESTABLISHED;
	peer->state = XR_TCP_ESTABLISHED;
	flow->flags &= ~(XR_FLOW_FIN | XR_FLOW_RST);
	peer->flags &= ~(XR_FLOW_FIN | XR_FLOW_RST);
	flow_returns(forward_of(flow, peer));
	count(XR_COUNT_closing_revoked);
}

/* Follows sequence numbers. SYNs and RSTs carry none that this side is bound to. */
static __always_inline void flow_track(const struct packet *p, flow_entry_t *flow, void *former)
{
	__u32 end = p->seq + segment_length(p);
	__u32 advance = end - flow->seq_next;

	if (p->flags & (TCP_FIN | TCP_RST | TCP_SYN)) {
		if (p->flags & TCP_SYN)
			return;
		if (!flow_closing(p, flow, former) || (p->flags & TCP_RST) ||
		    !is_credible(p, flow, end, former))
			return;
	} else {
		if (!is_credible(p, flow, end, former))
			return;
		if (flow->state == XR_TCP_CLOSING && p->payload && advance - 1 < TCP_WINDOW_MAX)
			flow_revoke_closing(p, flow, former);
	}
	if (advance - 1 < TCP_WINDOW_MAX)
		flow->seq_next = end;
	if ((p->flags & TCP_ACK) && p->ack - flow->ack < TCP_WINDOW_MAX) {
		flow->ack = p->ack;
		flow->window = (__u32)p->window << (flow->wscale & 15);
	}
	if (p->payload && !flow->first_data_us) {
		flow->first_data_us = elapsed_us(flow->seen_ns, clock_precise());
		if (flow->direction == XR_DIR_REPLY)
			sign_served(flow->backend);
	}
}

/*
 * last_seen is the daemon's newest heartbeat: a load from a map that is hot anyway, where
 * the coarse clock takes 14 ns of a packet's 60. It is late by one heartbeat, and stands
 * still while there is no daemon: whoever judges idleness has to know that.
 */
static __always_inline void flow_account(const struct packet *p, flow_entry_t *flow,
					 const struct control *control)
{
	if (control && !(p->flags & TCP_SYN)) /* may be a guess: it keeps nothing alive */
		flow->last_seen_ns = control->heartbeat_ns;
	__sync_fetch_and_add(&flow->packets, 1);
	__sync_fetch_and_add(&flow->bytes, p->ip_len);
}

static __always_inline int came_as_ever(struct xdp_md *ctx, const struct packet *p,
					const flow_entry_t *flow)
{
	return mac_equal(p->eth->h_source, flow->dmac) && flow->ifindex == ctx->ingress_ifindex;
}

static __always_inline void client_moves(struct xdp_md *ctx, const struct packet *p,
					 flow_entry_t *flow, flow_entry_t *peer)
{
	mac_copy(flow->dmac, p->eth->h_source);
	flow->ifindex = ctx->ingress_ifindex;
	mac_copy(peer->dmac, p->eth->h_source);
	mac_copy(peer->smac, p->eth->h_dest);
	peer->ifindex = ctx->ingress_ifindex;
	if (peer->flags & XR_FLOW_STAGE)
		peer->vlan = vlan_to_client(ctx, backends_lookup(flow->backend));
	count(XR_COUNT_client_moved);
}

/*
 * Replies follow the client's next hop: another gateway has taken over, or a card was
 * exchanged. Only a segment that comes exactly next says so: nobody guesses that number.
 */
static __always_inline void flow_follow_client(struct xdp_md *ctx, const struct packet *p,
					       flow_entry_t *flow, __u32 expected_seq, void *former)
{
	flow_entry_t *peer;

	if (p->seq != expected_seq || came_as_ever(ctx, p, flow))
		return;
	peer = is_one_sided(flow) ? flow : peer_in(former, &p->key, flow);
	if (peer && p->ack - flow->ack <= flow->window)
		client_moves(ctx, p, flow, peer);
}

/* The frame has been found to be for us, and to fit into what it leaves by. */
static __always_inline int flow_forward(struct xdp_md *ctx, struct packet *p, flow_entry_t *flow,
					const struct control *control, void *former)
{
	struct rewrite to = {
		.saddr = flow->new_saddr,
		.daddr = flow->new_daddr,
		.sport = flow->new_sport,
		.dport = flow->new_dport,
		.l3_delta = flow->l3_delta,
		.l4_delta = flow->l4_delta,
	};

	__u32 expected_seq = flow->seq_next;

	flow_account(p, flow, control);
	if (flow->flags & (XR_FLOW_ONE_SIDED | XR_FLOW_KILLED)) {
		if (flow->flags & XR_FLOW_KILLED)
			return go_to_stage(ctx, XR_STAGE_KILLED);
		one_sided_track(p, flow);
	} else {
		flow_track(p, flow, former);
	}
	if (flow->direction == XR_DIR_FORWARD) {
		flow_follow_client(ctx, p, flow, expected_seq, former);
		return send_to_backend(ctx, p, &to, flow->backend);
	}
	if (control && (control->flags & XR_CONTROL_NO_XMIT) && takes_no_frames(flow->ifindex))
		return hand_to_kernel(ctx, p, &to, XR_IF_HANDOFF_REPLY);
	return send_to_client(ctx, p, &to, flow->dmac, flow->smac, flow->ifindex,
			      flow->flags & XR_FLOW_STAGE ? flow->vlan : XR_VLAN_KEEP);
}

/* The frame has been found to be for us. */
static __always_inline int flow_packet(struct xdp_md *ctx, struct packet *p, flow_entry_t *flow)
{
	struct control *control = control_lookup();

	if (is_long(p, control))
		return go_to_stage(ctx, XR_STAGE_BOUND);
	return flow_forward(ctx, p, flow, control, 0);
}

/* The same for a packet that is longer than some interface takes, or of a flow in `former`. */
static __always_inline int flow_long_packet(struct xdp_md *ctx, struct packet *p,
					    flow_entry_t *flow, void *former)
{
	struct backend *backend;
	__u32 mtu;

	if (flow->direction == XR_DIR_FORWARD) {
		backend = backends_lookup(flow->backend);
		mtu = unfit_mtu_to(ctx, p, backend);
	} else {
		mtu = unfit_mtu(ctx, p, flow->ifindex, handoff_to_client(flow->ifindex));
	}
	if (mtu)
		return too_big(ctx, p, mtu);
	return flow_forward(ctx, p, flow, control_lookup(), former);
}

#endif
