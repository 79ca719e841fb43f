/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Packets that are too long for the interface that they have to leave by. The kernel drops
 * what is redirected and too long in silence, so the sender has to be told here (RFC 1191).
 */
#ifndef XR_MTU_H
#define XR_MTU_H

#include "send.h"

/* Headers that the kernel gives beside the MTU: Ethernet, and one VLAN tag. */
#define MTU_BESIDE (sizeof(struct ethhdr) + sizeof(struct vlan_tag))

/* What of an MTU the packet takes: a second tag counts. */
static __always_inline __u32 mtu_taken(const struct packet *p)
{
	__u32 beside = p->l3_off > MTU_BESIDE ? p->l3_off - MTU_BESIDE : 0;

	return p->ip_len + beside;
}

static __always_inline int is_long(const struct packet *p, const struct control *control)
{
	return control && mtu_taken(p) > control->min_mtu;
}

/* The egress's MTU if a packet that is_long() does not fit in it, else 0. */
static __always_inline __u32 exceeded_mtu(const struct packet *p, __u32 egress)
{
	struct interface *interface = interfaces_lookup(egress);

	return interface && mtu_taken(p) > interface->mtu ? interface->mtu : 0;
}

/*
 * May it be fragmented, and does the kernel, to which it is handed, do that? Not if it was merged
 * (see below): then its TCP checksum is not a whole one, and cannot be rewritten.
 */
static __always_inline int kernel_fragments(struct xdp_md *ctx, const struct packet *p, __u32 mtu,
					    __u32 capability)
{
	struct interface *ingress = interfaces_lookup(ctx->ingress_ifindex);

	return ingress && (ingress->flags & capability) && ingress->mtu > mtu &&
	       may_be_fragmented(p);
}

/* The egress's MTU if the packet exceeds it and nobody fragments it, else 0. */
static __always_inline __u32 unfit_mtu(struct xdp_md *ctx, const struct packet *p, __u32 egress,
				       __u32 capability)
{
	__u32 mtu = exceeded_mtu(p, egress);

	return mtu && !kernel_fragments(ctx, p, mtu, capability) ? mtu : 0;
}

/*
 * The same for a packet to a backend. stage_send, which knows by how much it makes a packet
 * longer, looks itself.
 */
static __always_inline __u32 unfit_mtu_to(struct xdp_md *ctx, const struct packet *p,
					  const struct backend *backend)
{
	if (!backend || (backend->flags & XR_BACKEND_TUNNEL))
		return 0;
	return unfit_mtu(ctx, p, backend->ifindex, handoff_to_backend(backend));
}

/*
 * Answers what does not fit by "fragmentation needed", if its sender forbade to fragment it, or
 * did so itself: it goes by this MTU from then on, and nobody else cuts its fragments again.
 * Not if it is as long as this only because it was merged on its way in (GRO below a bridge
 * with generic XDP): where its own interface takes no longer packets than the egress, its sender
 * sends none either, and would be told an MTU that it keeps to.
 */
static __always_inline int refuse_long(struct xdp_md *ctx, const struct packet *p, __u32 mtu)
{
	struct interface *ingress = interfaces_lookup(ctx->ingress_ifindex);

	if ((may_be_fragmented(p) && !is_first_fragment(p)) || (ingress && ingress->mtu <= mtu))
		return drop(XR_COUNT_too_big_dropped);
	return answer_error(ctx, ICMP_TOO_BIG, ICMP_TOO_BIG_CODE, mtu - (mtu_taken(p) - p->ip_len));
}

static __always_inline int too_big(struct xdp_md *ctx, const struct packet *p, __u32 mtu)
{
	if (p->ip->ttl <= 1) /* comes first (RFC 1812, 5.2.1.2) */
		return answer_ttl_exceeded(ctx);
	return refuse_long(ctx, p, mtu);
}

#endif
