/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ICMP errors about a packet of a flow, translated and brought to the side that sent it:
 * path MTU discovery works through the router, and so does "unreachable".
 *
 * The error embeds the packet as it left us, with the tuple T. What its receiver sends,
 * reverse(T), has an entry, which rewrites it to R: so what was embedded came to us as
 * reverse(R), and its sender is R's destination.
 *
 * No check of the quoted sequence number: the ends do that themselves, against what they
 * have really sent (RFC 5927, 4); a guess that passes here dies there.
 */
#ifndef XR_ICMP_H
#define XR_ICMP_H

#include "binding.h"
#include "icmp_quote.h"

#if XR_FAMILY == 6
#include "icmp6.h"
#else
#include "icmp4.h"
#endif

static __always_inline void route_by_backend(struct route_back *to, __u32 id)
{
	struct backend *backend = backends_lookup(id);

	if (!backend)
		return;
	to->ifindex = backend->ifindex;
	to->stage = backend->flags & XR_BACKEND_STAGE;
	to->backend = id;
	to->capability = handoff_to_backend(backend);
	mac_copy(to->dmac, backend->dmac);
	mac_copy(to->smac, backend->smac);
}

static __always_inline void route_by_client(struct route_back *to, __u32 ifindex, const __u8 *dmac,
					    const __u8 *smac, __u16 vlan)
{
	to->vlan = vlan;
	to->ifindex = ifindex;
	to->capability = handoff_to_client(ifindex);
	mac_copy(to->dmac, dmac);
	mac_copy(to->smac, smac);
}

/* Finds whose packets answer the embedded one, and where they go. 0: nobody's. */
static __always_inline int find_route_back(const flow_key_t *quoted, struct route_back *to)
{
	flow_key_t key = {
		.saddr = quoted->daddr,
		.daddr = quoted->saddr,
		.sport = quoted->dport,
		.dport = quoted->sport,
		.proto = quoted->proto,
		.kind = XR_KIND_NONE,
	};
	pending_flow_t *pending;
	flow_entry_t *flow = flow_table_lookup(&key);

	if (!flow)
		flow = previous_lookup(&key);
	if (flow) {
		to->saddr = flow->new_saddr;
		to->daddr = flow->new_daddr;
		to->sport = flow->new_sport;
		to->dport = flow->new_dport;
		if (flow->direction == XR_DIR_FORWARD) {
			route_by_backend(to, flow->backend);
			return 1;
		}
		to->about = flow->backend;
		route_by_client(to, flow->ifindex, flow->dmac, flow->smac, flow->vlan);
		return 1;
	}
	key.kind = XR_KIND_REPLY;
	pending = pending_lookup(&key);
	if (pending) {
		to->about = pending->backend;
		route_by_client(to, pending->ifindex, pending->dmac, pending->smac, pending->vlan);
	} else {
		key.kind = XR_KIND_FORWARD;
		pending = pending_lookup(&key);
		if (!pending || pending->backend == XR_NO_BACKEND)
			return 0;
		route_by_backend(to, pending->backend);
	}
	to->saddr = pending->new_saddr;
	to->daddr = pending->new_daddr;
	to->sport = pending->new_sport;
	to->dport = pending->new_dport;
	return 1;
}

static __always_inline int is_unreachable(const struct icmp_header *icmp)
{
	return icmp->type == ICMP_DEST_UNREACH && !is_too_big(icmp);
}

/* Only what comes by the backend's own way says something of it: others could make it up. */
static __always_inline void note_unreachable(struct xdp_md *ctx, const struct quote *quote,
					     const struct route_back *to)
{
	struct backend *backend = backends_lookup(to->about);

	if (backend && backend->ifindex == ctx->ingress_ifindex && is_unreachable(quote->icmp))
		sign_bad(to->about, SIGN_UNREACHABLE, to->daddr);
}

/* An error about a flow's packet goes to its sender, any other one passes untouched. */
static __always_inline int translate_error(struct xdp_md *ctx, struct packet *p,
					   const struct quote *quote)
{
	struct interface *ingress;
	struct route_back to = {.about = XR_NO_BACKEND};

	if (!addr_equal(p->ip->daddr, quote->key.saddr) || !find_route_back(&quote->key, &to))
		return pass(XR_COUNT_pass_other_protocol);
	note_unreachable(ctx, quote, &to);
	ingress = interfaces_lookup(ctx->ingress_ifindex);
	if (to.capability ? !ingress || !(ingress->flags & to.capability) ||
				    p->l3_off != sizeof(struct ethhdr)
			  : !to.ifindex)
		return drop(XR_COUNT_no_path);
	if (p->ip->ttl <= 1) /* an error is never answered by another one (RFC 1122, 3.2.2) */
		return drop(XR_COUNT_ttl_exceeded);
	rewrite_error(ctx, p, quote, &to);
	count(XR_COUNT_icmp_translated);
	if (to.capability && ingress) {
		mac_copy(p->eth->h_dest, ingress->mac);
		return pass(XR_COUNT_handed_to_kernel);
	}
	ip_lower_ttl(p->ip);
	if (to.stage)
		return go_to_send(ctx, to.backend);
	if (to.vlan)
		return go_to_send_client(ctx, to.dmac, to.smac, to.ifindex, to.vlan);
	mac_copy(p->eth->h_dest, to.dmac);
	mac_copy(p->eth->h_source, to.smac);
	return bpf_redirect(to.ifindex, 0);
}

#endif
