/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * stage_send: what changes its length on its way out. The packet is accounted for and rewritten,
 * its TTL is lowered; its MACs are still those that it came with, so that it can be answered.
 * Step by step: the outer header, the tag, and last the MACs.
 */
#ifndef XR_SEND_STAGE_H
#define XR_SEND_STAGE_H

#include "mtu.h"
#include "syn.h"
#include "tunnel_mtu.h"
#include "vlan.h"

/* What every way takes (RFC 791; RFC 8200, 5): nobody has us ask for shorter packets. */
#define LEAST_MTU (XR_FAMILY == 6 ? 1280U : 576U)

/* Is the packet, with what is put in front of it, too long for its way? Then it ends here. */
static __always_inline __u32 send_exceeds(const struct packet *p, const struct backend *backend,
					  __u32 overhead)
{
	struct interface *egress = interfaces_lookup(backend->ifindex);
	__u32 taken = mtu_taken(p) + overhead;
	__u32 mtu = egress ? egress->mtu : 0xffff;

	if (taken > LEAST_MTU + overhead) {
		__u32 told = tunnel_mtu(backend, mtu);

		mtu = told < mtu && told < LEAST_MTU + overhead ? LEAST_MTU + overhead : told;
	}
	return taken > mtu ? mtu - overhead : 0;
}

#define SEND_GOES_ON (-1)

/* Puts the outer header in front. SEND_GOES_ON, or the packet's end. */
static __always_inline int enter_tunnel(struct xdp_md *ctx, const struct backend *backend)
{
	struct service *service = 0;
	struct packet p = {};
	__u32 hash = 0, mtu;
	int result;

	result = parse_packet(ctx, &p);
	if (has_ports(result)) {
		hash = flow_hash(&p.key);
		service = service_of(&p);
	} else if (result != PARSE_ICMP && result != PARSE_FRAGMENT_LATER) {
		return drop(XR_COUNT_no_path);
	}
	mtu = send_exceeds(&p, backend, tunnel_overhead(backend));
	if (mtu && !has_ports(result)) /* an error is never answered by another one */
		return drop(XR_COUNT_too_big_dropped);
	if (mtu)
		return refuse_long(ctx, &p, mtu);
	if (encapsulate(ctx, &p, service, backend, hash))
		return drop(XR_COUNT_no_path);
	count(XR_COUNT_tunneled);
	return SEND_GOES_ON;
}

/*
 * Does a frame with one tag more than it came with still fit? Who sends with two tags has taken
 * the second one off the MTU (see mtu_taken()), so the answer to him does not often not fit.
 */
static __always_inline int fits_with_tag(struct xdp_md *ctx, __u32 ifindex)
{
	struct interface *interface = interfaces_lookup(ifindex);
	__u64 length = (void *)(long)ctx->data_end - (void *)(long)ctx->data;

	return !interface || length <= interface->mtu + MTU_BESIDE;
}

static __always_inline int send_stage(struct xdp_md *ctx)
{
	struct scratch *scratch = scratch_lookup(ctx);
	const struct backend *backend = 0;
	struct ethhdr *eth;
	const __u8 *dmac, *smac;
	__u32 ifindex;
	__u16 vlan;

	if (!scratch)
		return XDP_DROP;
	if (scratch->send.backend == XR_NO_BACKEND) {
		vlan = scratch->send.vlan;
		ifindex = scratch->send.ifindex;
	} else {
		backend = backends_lookup(scratch->send.backend);
		if (!backend)
			return drop(XR_COUNT_no_path);
		if (backend->flags & XR_BACKEND_TUNNEL) {
			int result = enter_tunnel(ctx, backend);

			if (result != SEND_GOES_ON)
				return result;
		}
		vlan = backend->vlan;
		ifindex = backend->ifindex;
	}
	if (change_tag(ctx, vlan))
		return drop(XR_COUNT_no_path);
	if ((vlan & XR_VLAN_PUSH) && !fits_with_tag(ctx, ifindex))
		return drop(XR_COUNT_too_big_dropped);
	dmac = backend ? backend->dmac : scratch->send.dmac;
	smac = backend ? backend->smac : scratch->send.smac;
	eth = (void *)(long)ctx->data;
	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return XDP_DROP;
	mac_copy(eth->h_dest, dmac);
	mac_copy(eth->h_source, smac);
	return backend ? redirect(ctx, ifindex) : bpf_redirect(ifindex, 0);
}

#endif
