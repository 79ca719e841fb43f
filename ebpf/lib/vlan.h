/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * VLAN tags (IEEE 802.1Q) of frames that leave with another one than they came with. Only the
 * outer tag is looked at; its priority stays, a new one has none.
 */
#ifndef XR_VLAN_H
#define XR_VLAN_H

#include "parse.h"
#include "stats.h"

#define VLAN_ID 0x0fff

static __always_inline int is_tag(__be16 proto)
{
	return proto == xr_htons(ETH_P_8021Q) || proto == xr_htons(ETH_P_8021AD);
}

/*
 * What frames to the client of this one need, so that they have his tag: nothing if those to
 * the backend keep it, and so do its replies. `backend` may be 0.
 */
static __always_inline __u16 vlan_to_client(struct xdp_md *ctx, const struct backend *backend)
{
	void *data_end = (void *)(long)ctx->data_end;
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct vlan_tag *tag = (void *)(eth + 1);
	__u16 vlan;

	if (!backend || !backend->vlan)
		return XR_VLAN_KEEP;
	if ((void *)(tag + 1) > data_end || !is_tag(eth->h_proto))
		return XR_VLAN_NONE;
	vlan = XR_VLAN_TAG | (xr_ntohs(tag->tci) & VLAN_ID);
	if (eth->h_proto == xr_htons(ETH_P_8021AD))
		vlan |= XR_VLAN_SERVICE;
	if (backend->vlan == XR_VLAN_NONE && is_tag(tag->inner_proto))
		vlan |= XR_VLAN_PUSH;
	return vlan;
}

/*
 * Moves the beginning of the frame to where it has `length` bytes more (or fewer), and its MACs
 * there; metadata moves along. 0, or there is no room.
 */
static __always_inline int move_macs(struct xdp_md *ctx, int length)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	__u8 dmac[ETH_ALEN], smac[ETH_ALEN];

	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return -1;
	mac_copy(dmac, eth->h_dest);
	mac_copy(smac, eth->h_source);
	if (bpf_xdp_adjust_head(ctx, -length))
		return -1;
	eth = (void *)(long)ctx->data;
	if ((void *)(eth + 1) > (void *)(long)ctx->data_end)
		return -1;
	mac_copy(eth->h_dest, dmac);
	mac_copy(eth->h_source, smac);
	return 0;
}

static __always_inline int put_tag(struct xdp_md *ctx, __u16 vlan)
{
	struct ethhdr *eth;
	struct vlan_tag *tag;

	if (move_macs(ctx, sizeof(*tag)))
		return -1;
	eth = (void *)(long)ctx->data;
	tag = (void *)(eth + 1);
	if ((void *)(tag + 1) > (void *)(long)ctx->data_end)
		return -1;
	/* the type of what follows is where it was, and so the new tag's inner one */
	eth->h_proto = vlan & XR_VLAN_SERVICE ? xr_htons(ETH_P_8021AD) : xr_htons(ETH_P_8021Q);
	tag->tci = xr_htons(vlan & VLAN_ID);
	count(XR_COUNT_vlan_changed);
	return 0;
}

/* Gives the frame the tag that `vlan` (XR_VLAN_) says. 0, or there is no room for it. */
static __always_inline int change_tag(struct xdp_md *ctx, __u16 vlan)
{
	struct ethhdr *eth = (void *)(long)ctx->data;
	struct vlan_tag *tag = (void *)(eth + 1);
	__be16 proto, tci;

	if (!vlan)
		return 0;
	if ((void *)(tag + 1) > (void *)(long)ctx->data_end)
		return -1;
	if (!is_tag(eth->h_proto))
		return vlan & XR_VLAN_TAG ? put_tag(ctx, vlan) : 0;
	if (vlan & XR_VLAN_NONE) {
		if (move_macs(ctx, -(int)sizeof(*tag)))
			return -1;
		count(XR_COUNT_vlan_changed);
		return 0;
	}
	if (vlan & XR_VLAN_PUSH)
		return put_tag(ctx, vlan);
	proto = vlan & XR_VLAN_SERVICE ? xr_htons(ETH_P_8021AD) : eth->h_proto;
	tci = (tag->tci & ~xr_htons(VLAN_ID)) | xr_htons(vlan & VLAN_ID);
	if (proto != eth->h_proto || tci != tag->tci) {
		eth->h_proto = proto;
		tag->tci = tci;
		count(XR_COUNT_vlan_changed);
	}
	return 0;
}

#endif
